// A kernel as another compiler made it, in the place of what g++ made of the .cu file, and what such code may ask of the
// stand-in. It lives in a library of its own, so that the two share functions and plain structures alone.
#pragma once

#include <cstdint>

namespace emu {

struct Machine {
  const unsigned* thread;  // threadIdx, blockIdx, blockDim and gridDim, three numbers each
  const unsigned* block;
  const unsigned* block_size;
  const unsigned* grid_size;
  const int* current;  // the thread's number in its block
  void (*wait_for_block)(int line);
  uint64_t (*exchange)(unsigned mask, uint64_t value, int from, int line);
  void (*let_others_go_first)();  // before an atomic
};

struct Kernel {
  const char* name;  // demangled
  void (*run)(const void* const* parameters);
  void (*begin_launch)();
  void (*begin_block)();
  int most_threads;
  const int* parameter_sizes;
  int parameters;
  uint64_t* visits;  // of each basic block
  int blocks;
};

}  // namespace emu
