// What the tests steer from Python: the schedule of the emulated threads, a launch that is refused, the current stream, and
// a look at the launches since the last one.
#include <cuda_runtime.h>

#define EMU_API extern "C" __attribute__((visibility("default")))

// Each op of a test runs on a stream of its own, so that one kept from an earlier op is seen.
EMU_API void emulator_schedule(int order, uint64_t seed) {
  emu::order = static_cast<emu::Order>(order);
  emu::seed = seed;
  emu::current_stream += 1;
}

EMU_API void* emulator_stream() { return reinterpret_cast<void*>(emu::current_stream); }

// The launch of this number since the last look, and all after it, are refused; -1: none.
EMU_API void emulator_refuse(int64_t launch) { emu::refused = launch; }

EMU_API int emulator_launches(int64_t* out, int capacity) {
  const int n = static_cast<int>(emu::launches.size());
  for (int i = 0; i < n && i < capacity; ++i) {
    out[2 * i] = emu::launches[i].blocks;
    out[2 * i + 1] = emu::launches[i].threads;
  }
  emu::launches.clear();
  return n;
}
