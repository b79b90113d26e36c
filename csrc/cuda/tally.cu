#include "../tally.h"

#include "atomic64.h"
#include "launch.h"

namespace cfol::cuda {
namespace {

__global__ void __launch_bounds__(kThreads)
    class_tally_kernel(int64_t* __restrict__ tally, int64_t k, const int64_t* __restrict__ y, const float* __restrict__ loss,
                       int64_t n, int32_t* fault) {
  int32_t flags = 0;
  for (int64_t i = first_element(); i < n; i += grid_stride()) {
    if (!loss_is_valid(loss[i])) flags |= kFaultLoss;
    if (y[i] < 0 || y[i] >= k) {
      flags |= kFaultLabel;
      continue;
    }
    add64(tally + 2 * y[i], 1);
    add64(tally + 2 * y[i] + 1, loss_units(clamped_loss(loss[i])));
  }
  raise_faults(fault, flags);
}

}  // namespace

const char* class_tally(int64_t* tally, int64_t k, const int64_t* y, const float* loss, int64_t n, int32_t* fault,
                        void* stream) {
  if (n == 0) return nullptr;
  return launch(class_tally_kernel, blocks_for(n), stream, tally, k, y, loss, n, fault);
}

}  // namespace cfol::cuda
