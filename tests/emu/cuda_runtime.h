// A stand-in for <cuda_runtime.h>: g++ compiles csrc/cuda/*.cu unchanged against it and runs the kernels on the CPU.
//
// Every CUDA thread is a fiber (ucontext); blocks run one after another, all in one OS thread. A fiber runs until it meets a
// barrier, a warp intrinsic or an atomic; then the scheduler picks the next: lowest first, highest first, or seeded random.
// What it finds: results that depend on the order (a missing barrier), reads of unwritten shared memory (poisoned with NaN
// bits), barriers that not all threads reach, lanes outside their mask, masks with lanes that have left the kernel, wide
// accesses that are not aligned, launches on another stream than the current one. Under -fsanitize=thread a CUDA thread is
// a TSan fiber, and only barriers, warp intrinsics and atomics order them, so that TSan reports races in shared and global
// memory.
//
// The same launches run what nvcc made of a kernel, its PTX, translated to C++ by tests/ptx (replaced.h).
//
// There is no memory copy and no synchronise here: a launcher that waits for the device does not compile.
#pragma once

#include <ucontext.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <functional>
#include <map>
#include <random>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <vector>

#include "replaced.h"

#if defined(__SANITIZE_THREAD__)
#include <sanitizer/tsan_interface.h>
#define EMU_TSAN(...) __VA_ARGS__
#define EMU_FUNCTION __attribute__((no_sanitize("thread"), noinline)) inline
#else
#define EMU_TSAN(...)
#define EMU_FUNCTION inline
#endif

#define __global__
#define __host__
#define __device__
#define __forceinline__ inline
#define __launch_bounds__(...)
#define __shared__ static __attribute__((section("cuda_shared")))
extern char __start_cuda_shared[] __attribute__((weak)), __stop_cuda_shared[] __attribute__((weak));

using cudaStream_t = void*;
enum cudaError_t { cudaSuccess = 0, cudaErrorInvalidValue = 1, cudaErrorInvalidConfiguration = 9 };
inline const char* cudaGetErrorString(cudaError_t e) {
  return e == cudaSuccess ? "no error" : e == cudaErrorInvalidValue ? "invalid argument" : "invalid configuration argument";
}
struct dim3 {
  unsigned x, y, z;
  constexpr dim3(unsigned a = 1, unsigned b = 1, unsigned c = 1) : x(a), y(b), z(c) {}
};
// A GPU refuses a wide access to an address that is not a multiple of its size.
template <class T>
inline void check_alignment(const T* p) {
  uintptr_t address = reinterpret_cast<uintptr_t>(p);
  // The compiler may not conclude from the type that the address is right.
  asm volatile("" : "+r"(address));
  if (address % sizeof(T) != 0) throw std::runtime_error("misaligned address of " + std::to_string(sizeof(T)) + " bytes");
}
struct alignas(16) float4 {
  float x, y, z, w;
  float4() = default;
  float4(const float4& from) { *this = from; }
  float4& operator=(const float4& from) {
    check_alignment(this);
    check_alignment(&from);
    x = from.x, y = from.y, z = from.z, w = from.w;
    return *this;
  }
};
struct cudaLaunchConfig_t {
  dim3 gridDim, blockDim;
  size_t dynamicSmemBytes;
  cudaStream_t stream;
  void* attrs;
  unsigned numAttrs;
};
inline dim3 threadIdx, blockIdx, blockDim, gridDim;

namespace emu {

enum Order { kUp, kDown, kRandom };
enum State : unsigned char { kReady, kAtBarrier, kAtWarpOp, kDone };

struct Fiber {
  ucontext_t context;
  std::vector<char> stack;
  int line;           // where it waits
  unsigned mask;      // of the warp intrinsic it waits in
  unsigned barriers;  // passed so far
  uint64_t slot;      // what it offers to its warp
  void* tsan;
};

struct Launch {
  int64_t blocks, threads;
};

inline Order order = kUp;
inline uint64_t seed = 0;
inline std::vector<Launch> launches;  // since the last look: tests ask whether a kernel uses blocks and warps
inline uintptr_t current_stream = 1;  // a sentinel, never the default stream: every launch must be given it
inline int64_t refused = -1;          // the launch that fails, counted from the last look
inline std::vector<Fiber> fibers;
inline unsigned char states[1024];
inline ucontext_t scheduler;
inline int current = 0, count = 0;
inline const std::function<void()>* body = nullptr;
inline std::string error;
inline std::mt19937_64 generator;
// The compilers' code of each kernel; number 0 is what g++ made of the source.
inline int code = 0;
inline std::map<std::pair<int, const void*>, const Kernel*> kernels;
inline const Kernel* replaced = nullptr;  // in the launch that runs
// Of a grid that is too large to be run whole, these blocks are.
inline unsigned first_block = 0, most_blocks = UINT32_MAX;

// TSan sees an order only where one fiber releases a tag that another acquires. A block has two tags for its barriers and
// two for each warp: one each would let a late acquire see the next release and hide a race.
constexpr int kTagsPerBlock = 2 + 32 * 2;
inline void* scheduler_tsan = nullptr;
// Making a TSan fiber takes half a millisecond: those of blocks that are over, and ordered before what comes next, are used
// again.
inline std::vector<void*> finished_tsan, idle_tsan;
inline uint64_t start_tag, end_tag, tags[256 * kTagsPerBlock], *block_tags = tags;
inline bool order_blocks = true;  // false: TSan also reports races between blocks (then ignore those on __shared__)

EMU_FUNCTION void enter(int i) {
  current = i;
  threadIdx = dim3(i % blockDim.x, i / blockDim.x % blockDim.y, i / (blockDim.x * blockDim.y));
  EMU_TSAN(__tsan_switch_to_fiber(fibers[i].tsan, 1);)
  swapcontext(&scheduler, &fibers[i].context);
}

EMU_FUNCTION void leave(State state, int line) {
  Fiber& fiber = fibers[current];
  states[current] = state;
  fiber.line = line;
  EMU_TSAN(__tsan_switch_to_fiber(scheduler_tsan, 1);)
  swapcontext(&fiber.context, &scheduler);
}

EMU_FUNCTION void fiber_main() {
  EMU_TSAN(__tsan_acquire(&start_tag);)
  try {
    (*body)();
  } catch (const std::exception& e) {
    error = e.what();
  }
  EMU_TSAN(__tsan_release(&end_tag);)
  leave(kDone, 0);
}

EMU_FUNCTION void wait_for_warp(unsigned mask, int line, [[maybe_unused]] int phase) {
  if (!(mask >> (current & 31) & 1))
    throw std::runtime_error("lane calls a warp op outside its mask, line " + std::to_string(line));
  fibers[current].mask = mask;
  EMU_TSAN(void* tag = block_tags + 2 + (current >> 5) * 2 + phase; __tsan_release(tag);)
  leave(kAtWarpOp, line);
  EMU_TSAN(__tsan_acquire(tag);)
}

EMU_FUNCTION void wait_for_block(int line) {
  EMU_TSAN(void* tag = block_tags + (fibers[current].barriers++ & 1); __tsan_release(tag);)
  leave(kAtBarrier, line);
  EMU_TSAN(__tsan_acquire(tag);)
}

// A warp intrinsic completes when every lane of its mask waits at the same line with the same mask. One that has left the
// kernel never comes: on a GPU that is undefined.
EMU_FUNCTION void release_warp_of(int i) {
  const int first = i & ~31, last = std::min(count, first + 32);
  for (int a = states[i] == kAtWarpOp ? i : first; a < last; ++a) {
    if (states[a] != kAtWarpOp) continue;
    const auto member = [&](int j) { return (fibers[a].mask >> (j & 31) & 1) && states[j] != kDone; };
    bool complete = true;
    for (int j = first; j < last; ++j)
      if (member(j))
        complete &= states[j] == kAtWarpOp && fibers[j].mask == fibers[a].mask && fibers[j].line == fibers[a].line;
    if (complete) {
      for (int j = first; j < first + 32; ++j)
        if ((fibers[a].mask >> (j & 31) & 1) && (j >= count || states[j] == kDone))
          error = "the mask of a warp op names lane " + std::to_string(j & 31) + ", which has left the kernel, line " +
                  std::to_string(fibers[a].line);
      for (int j = first; j < last; ++j)
        if (member(j) && j != a) states[j] = kReady;
      states[a] = kReady;
    }
    if (a == i) return;
  }
}

EMU_FUNCTION int pick() {
  const int from = order == kRandom ? static_cast<int>(generator() % count) : 0;
  const void* p = order == kDown ? memrchr(states, kReady, count) : memchr(states + from, kReady, count - from);
  if (!p && from) p = memchr(states, kReady, from);
  return p ? static_cast<int>(static_cast<const unsigned char*>(p) - states) : -1;
}

// Nobody can run: all live threads must stand at one barrier, or the kernel is wrong.
EMU_FUNCTION bool pass_barrier() {
  int live = 0, waiting = 0, line = 0;
  bool same = true;
  for (int j = 0; j < count; ++j) {
    live += states[j] != kDone;
    if (states[j] != kAtBarrier) continue;
    same &= waiting++ == 0 || fibers[j].line == line;
    line = fibers[j].line;
  }
  if (live == 0) return false;
  if (waiting != live || !same) {
    error = "barrier divergence: " + std::to_string(waiting) + " of " + std::to_string(live) +
            " live threads at __syncthreads (line " + std::to_string(line) + ")";
    return false;
  }
  for (int j = 0; j < count; ++j)
    if (states[j] == kAtBarrier) states[j] = kReady;
  return true;
}

EMU_FUNCTION void start_fibers() {
  for (int i = 0; i < count; ++i) {
    Fiber& fiber = fibers[i];
    states[i] = kReady;
    fiber.barriers = 0;
    fiber.stack.resize(64 << 10);
    getcontext(&fiber.context);
    EMU_TSAN(if (idle_tsan.empty()) idle_tsan.push_back(__tsan_create_fiber(0)); fiber.tsan = idle_tsan.back();
             idle_tsan.pop_back();)
    fiber.context.uc_stack.ss_sp = fiber.stack.data();
    fiber.context.uc_stack.ss_size = fiber.stack.size();
    fiber.context.uc_link = nullptr;
    makecontext(&fiber.context, fiber_main, 0);
  }
}

EMU_FUNCTION void run_block(unsigned id) {
  blockIdx = dim3(id % gridDim.x, id / gridDim.x % gridDim.y, id / (gridDim.x * gridDim.y));
  block_tags = tags + id % 256 * kTagsPerBlock;
  for (char* p = __start_cuda_shared; p < __stop_cuda_shared; ++p) *const_cast<volatile char*>(p) = static_cast<char>(0xff);
  if (replaced != nullptr) replaced->begin_block();
  EMU_TSAN(if (order_blocks) __tsan_release(&start_tag);)
  start_fibers();
  while (error.empty()) {
    const int i = pick();
    if (i < 0) {
      if (!pass_barrier()) break;
      continue;
    }
    enter(i);
    if (states[i] == kAtWarpOp || states[i] == kDone) release_warp_of(i);
  }
  EMU_TSAN(if (order_blocks) __tsan_acquire(&end_tag);
           for (int i = 0; i < count; ++i)(order_blocks ? idle_tsan : finished_tsan).push_back(fibers[i].tsan);)
}

inline cudaError_t launch(dim3 grid, dim3 block, const std::function<void()>& kernel) {
  if (refused >= 0 && static_cast<int64_t>(launches.size()) >= refused) {
    launches.push_back({0, 0});
    return cudaErrorInvalidConfiguration;
  }
  body = &kernel;
  gridDim = grid;
  blockDim = block;
  count = static_cast<int>(block.x * block.y * block.z);
  error.clear();
  generator.seed(seed);
  if (count < 1 || count > 1024 || !grid.x || !grid.y || !grid.z || grid.x > INT32_MAX || grid.y > 65535 || grid.z > 65535)
    return cudaErrorInvalidConfiguration;
  // A kernel may have 48 KB; here all have it together.
  if (__stop_cuda_shared - __start_cuda_shared > 48 << 10) return cudaErrorInvalidConfiguration;
  launches.push_back({int64_t{grid.x} * grid.y * grid.z, count});
  if (static_cast<int>(fibers.size()) < count) fibers = std::vector<Fiber>(count);
  EMU_TSAN(scheduler_tsan = __tsan_get_current_fiber(); __tsan_release(&start_tag);)
  std::vector<unsigned> ids(std::min(static_cast<size_t>(grid.x) * grid.y * grid.z - first_block, size_t{most_blocks}));
  for (size_t i = 0; i < ids.size(); ++i) ids[i] = static_cast<unsigned>(first_block + i);
  if (order == kDown) std::reverse(ids.begin(), ids.end());
  if (order == kRandom) std::shuffle(ids.begin(), ids.end(), generator);
  for (const unsigned id : ids) {
    run_block(id);
    if (!error.empty()) throw std::runtime_error("emulator: " + error);
  }
  // late: a fiber that is used again by another block of this launch would hide a race
  EMU_TSAN(__tsan_acquire(&end_tag); idle_tsan.insert(idle_tsan.end(), finished_tsan.begin(), finished_tsan.end());
           finished_tsan.clear();)
  return cudaSuccess;
}

template <class T>
EMU_FUNCTION T exchange(unsigned mask, T value, int from, int line) {
  static_assert(sizeof(T) <= 8, "a lane offers at most eight bytes");
  const int lane = current & 31, base = current & ~31;
  __builtin_memcpy(&fibers[current].slot, &value, sizeof(T));
  wait_for_warp(mask, line, 0);  // all have written
  const bool inside = from >= 0 && from < 32 && base + from < count;
  T result;
  __builtin_memcpy(&result, &fibers[base + (inside ? from : lane)].slot, sizeof(T));
  wait_for_warp(mask, line, 1);  // all have read
  return result;
}

inline unsigned mask_or_all(unsigned mask = 0xffffffffu) { return mask; }

// Every atomic is a place where another thread may come first.
template <class T, class Change>
T atomic(T* p, Change change) {
  leave(kReady, 0);
  T old, value;
  __atomic_load(p, &old, __ATOMIC_RELAXED);
  value = change(old);
  __atomic_store(p, &value, __ATOMIC_RELAXED);
  return old;
}

}  // namespace emu

#define __syncthreads() emu::wait_for_block(__LINE__)
#define __syncwarp(...) (void)emu::exchange(emu::mask_or_all(__VA_ARGS__), 0, 0, __LINE__)
#define __shfl_sync(m, v, s) emu::exchange(m, v, (int)(s) & 31, __LINE__)
#define __shfl_xor_sync(m, v, o) emu::exchange(m, v, (emu::current & 31) ^ (int)(o), __LINE__)
#define __shfl_up_sync(m, v, o) emu::exchange(m, v, (emu::current & 31) - (int)(o), __LINE__)
#define __shfl_down_sync(m, v, o) emu::exchange(m, v, (emu::current & 31) + (int)(o), __LINE__)

template <class T>
T atomicAdd(T* p, T v) {
  return emu::atomic(p, [v](T old) { return static_cast<T>(old + v); });
}
template <class T>
T atomicOr(T* p, T v) {
  return emu::atomic(p, [v](T old) { return static_cast<T>(old | v); });
}
template <class T>
T atomicMax(T* p, T v) {
  return emu::atomic(p, [v](T old) { return old < v ? v : old; });
}
template <class T>
T atomicMin(T* p, T v) {
  return emu::atomic(p, [v](T old) { return v < old ? v : old; });
}
template <class T>
T atomicExch(T* p, T v) {
  return emu::atomic(p, [v](T) { return v; });
}
template <class T>
T atomicCAS(T* p, T expected, T v) {
  return emu::atomic(p, [&](T old) { return old == expected ? v : old; });
}

namespace emu {

// A launch that CUDA would refuse, or that no kernel here has a use for.
inline cudaError_t check_configuration(const cudaLaunchConfig_t& config) {
  if (reinterpret_cast<uintptr_t>(config.stream) != current_stream)
    throw std::runtime_error("emulator: a launch on another stream than the current one");
  if (config.dynamicSmemBytes != 0)
    throw std::runtime_error("emulator: a launch with dynamic shared memory, of which the stand-in knows nothing");
  if (config.numAttrs != 0 || config.attrs != nullptr)
    throw std::runtime_error("emulator: a launch with attributes, of which the stand-in knows nothing");
  return config.blockDim.z > 64 ? cudaErrorInvalidConfiguration : cudaSuccess;
}

inline cudaError_t run_replaced(const Kernel& kernel, dim3 grid, dim3 block, const void* const* parameters) {
  if (block.x * block.y * block.z > static_cast<unsigned>(kernel.most_threads))
    throw std::runtime_error(std::string("emulator: more threads than the bounds of ") + kernel.name);
  struct Running {
    explicit Running(const Kernel* now) { replaced = now; }
    ~Running() { replaced = nullptr; }
  } const running(&kernel);
  kernel.begin_launch();
  return launch(grid, block, [&] { kernel.run(parameters); });
}

template <class... Parameters>
cudaError_t launch_replaced(const cudaLaunchConfig_t& config, const void* source, Parameters... values) {
  const auto found = kernels.find({code, source});
  if (found == kernels.end()) throw std::runtime_error("emulator: the other code lacks a kernel");
  const Kernel& kernel = *found->second;
  const void* const parameters[] = {&values...};
  const std::vector<int> sizes = {static_cast<int>(sizeof values)...};
  if (!std::equal(sizes.begin(), sizes.end(), kernel.parameter_sizes, kernel.parameter_sizes + kernel.parameters))
    throw std::runtime_error(std::string("emulator: other parameters than those of ") + kernel.name);
  return run_replaced(kernel, config.gridDim, config.blockDim, parameters);
}

}  // namespace emu

template <class... Parameters, class... Arguments>
cudaError_t cudaLaunchKernelEx(const cudaLaunchConfig_t* config, void (*kernel)(Parameters...), Arguments... arguments) {
  // nvcc refuses a reference; what is not trivial would need its constructor on the device.
  static_assert((std::is_trivially_copyable_v<Parameters> && ...), "a kernel's parameters are copied as bytes");
  if (const cudaError_t error = emu::check_configuration(*config); error != cudaSuccess) return error;
  if (emu::code != 0)
    return emu::launch_replaced<Parameters...>(*config, reinterpret_cast<const void*>(kernel), arguments...);
  return emu::launch(config->gridDim, config->blockDim, [&] { kernel(static_cast<Parameters>(arguments)...); });
}
