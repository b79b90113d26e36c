// What the tests steer from Python: the schedule of the emulated threads, and a look at the launches since the last one.
#include <cuda_runtime.h>

extern "C" __attribute__((visibility("default"))) void emulator_schedule(int order, uint64_t seed) {
  emu::order = static_cast<emu::Order>(order);
  emu::seed = seed;
}

extern "C" __attribute__((visibility("default"))) int emulator_launches(int64_t* out, int capacity) {
  const int n = static_cast<int>(emu::launches.size());
  for (int i = 0; i < n && i < capacity; ++i) {
    out[2 * i] = emu::launches[i].blocks;
    out[2 * i + 1] = emu::launches[i].threads;
  }
  emu::launches.clear();
  return n;
}
