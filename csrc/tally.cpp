// cfol_fast::class_tally: checks and registration.
#include "tally.h"

#include "feedback.h"

namespace cfol {
namespace {

template <class Device>
void class_tally(Tensor tally, const Tensor& y, const Tensor& loss, std::optional<Tensor> fault) {
  check_dtype(tally, ScalarType::Long, "tally");
  if (tally.dim() != 2 || tally.size(1) != 2) value_error("tally must have shape (k, 2), got ", shape_text(tally));
  if (!tally.is_contiguous()) value_error("tally must be contiguous");
  const int64_t k = tally.size(0);
  const Feedback feedback = feedback_of<Device>(y, "y", loss, tally, "tally", k);
  check_apart({{"tally", tally}, {"fault", fault}}, {{"y", y}, {"loss", loss}});
  const Device device(tally);
  CFOL_RUN(Device, device, class_tally, tally.mutable_data_ptr<int64_t>(), k, feedback.y, feedback.loss, feedback.n,
           fault_data(fault, tally, "tally"));
}

}  // namespace

CFOL_REGISTER(class_tally)

}  // namespace cfol
