#include "../uniform.h"

#include "../parallel.h"

namespace cfol::cpu {
namespace {

constexpr int64_t kGrain = 1 << 13;  // slots a thread takes at least

}  // namespace

void uniform(const RngState* rng, Stream stream, int64_t first, int64_t n, float* out) {
  if (n == 0) return;
  const RngState state = *rng;
  const int64_t first_slot = first / 4;
  parallel_for(uniform_slots(first, n), kGrain, [&](int64_t begin, int64_t end) {
    for (int64_t slot = first_slot + begin; slot < first_slot + end; ++slot)
      uniform_slot(state, stream, slot, first, n, out);
  });
}

}  // namespace cfol::cpu
