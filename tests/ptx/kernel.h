// What the C++ of a translated kernel stands on: the stand-in's threads, and memory whose every access is checked.
#pragma once

#include <array>
#include <cstring>
#include <unordered_map>
#include <vector>

#include "instructions.h"
#include "replaced.h"

namespace ptx {

inline const emu::Machine* machine = nullptr;
inline std::vector<emu::Kernel>& kernels() {
  static std::vector<emu::Kernel> all;
  return all;
}
struct Registration {
  explicit Registration(const emu::Kernel& kernel) { kernels().push_back(kernel); }
};

// ---- memory
// --------------------------------------------------------------------------------------------------------------- Which
// words of four bytes the launch has read through the read-only path, and which it has written: what is in both is undefined
// on a GPU.
enum Use : uint8_t { kReadOnly = 1, kWritten = 2 };
inline std::unordered_map<uint64_t, std::array<uint8_t, 1024>> used;  // by page
inline void note(const char* at, int bytes, Use use, int line) {
  static uint64_t last_page = 0;
  static std::array<uint8_t, 1024>* words = nullptr;
  const uint64_t from = reinterpret_cast<uint64_t>(at) / 4, upto = (reinterpret_cast<uint64_t>(at) + bytes - 1) / 4;
  for (uint64_t word = from; word <= upto; ++word) {
    if (used.empty() || word / 1024 != last_page) words = &used[last_page = word / 1024];
    uint8_t& seen = (*words)[word % 1024];
    seen |= use;
    if (seen == (kReadOnly | kWritten)) fail("memory is written that the launch reads through ld.global.nc", line);
  }
}

inline char* global_at(uint64_t address, int bytes, int line) {
  if (address % bytes != 0) fail("a misaligned access of " + std::to_string(bytes) + " bytes", line);
  if (address < 4096) fail("a null pointer", line);
  return reinterpret_cast<char*>(address);
}

constexpr int kMostShared = 48 << 10;  // bytes that a block has without asking for more
alignas(16) inline char shared_memory[kMostShared];
inline char* shared_at(uint32_t offset, uint32_t bytes, uint32_t size, int line) {
  if (offset % bytes != 0) fail("a misaligned access of shared memory", line);
  if (offset > size || bytes > size - offset)
    fail("an access outside of the kernel's " + std::to_string(size) + " bytes of shared memory", line);
  return shared_memory + offset;
}
inline void begin_launch() { used.clear(); }
template <int Size>
void begin_block() {
  static_assert(Size <= kMostShared, "more shared memory than a block has");
  std::memset(shared_memory, 0xff, Size);
}

template <class T>
inline T load(const char* at) {
  T value;
  std::memcpy(&value, at, sizeof value);
  return value;
}
template <class T>
inline void store(char* at, T value) {
  std::memcpy(at, &value, sizeof value);
}

// ---- between threads
// --------------------------------------------------------------------------------------------------------
template <class T, class Change>
inline T atomic(char* at, Change change) {
  machine->let_others_go_first();
  const T old = load<T>(at);
  store<T>(at, change(old));
  return old;
}
template <class T>
inline T atom_add(char* at, T v) {
  return atomic<T>(at, [v](T old) { return add(old, v); });
}
template <class T>
inline T atom_or(char* at, T v) {
  return atomic<T>(at, [v](T old) { return or_(old, v); });
}
template <class T>
inline T atom_max(char* at, T v) {
  return atomic<T>(at, [v](T old) { return max(old, v); });
}
template <class T>
inline T atom_min(char* at, T v) {
  return atomic<T>(at, [v](T old) { return min(old, v); });
}
template <class T>
inline T atom_exch(char* at, T v) {
  return atomic<T>(at, [v](T) { return v; });
}

enum class Shuffle { bfly, up, down, idx };
struct Shuffled {
  u32 value;
  bool inside;  // the lane is one of the segment; else the thread keeps its own value
};
inline Shuffled shuffle(Shuffle mode, u32 value, u32 by, u32 segments, u32 mask, int line) {
  const int lane = *machine->current & 31, limit = segments & 31, segment = segments >> 8 & 31, n = by & 31;
  const int lowest = lane & segment, bound = lowest | (limit & ~segment);
  int from = lane;
  bool inside = true;
  if (mode == Shuffle::up) inside = (from = lane - n) >= bound;
  if (mode == Shuffle::down) inside = (from = lane + n) <= bound;
  if (mode == Shuffle::bfly) inside = (from = lane ^ n) <= bound;
  if (mode == Shuffle::idx) inside = (from = lowest | (n & ~segment)) <= bound;
  return {static_cast<u32>(machine->exchange(mask, value, inside ? from : lane, line)), inside};
}

}  // namespace ptx
