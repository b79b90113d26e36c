#include "../../csrc/augment.h"

#include <cmath>

#include "exercise.h"

namespace {

const cfol::AugmentRanges kRanges{3, true, true, 0.5f, 0.5f, 0.5f, 30.0f};

// Drawn, given (one row not allowed) and no parameters, both layouts and dtypes; an index outside the images.
void run_all(const cfol::ImageStore& images, const std::vector<int64_t>& idx, int64_t height, int64_t width) {
  const int64_t batch = static_cast<int64_t>(idx.size());
  std::vector<cfol::AugmentParameters> given(idx.size(), {-2, 1, 1, 1.2f, 0.8f, 1.1f, 45.0f, 0});
  if (batch > 1) given[1].top = std::nanf("");
  cfol::RngState rng{42, 7};
  int32_t fault = 0;
  const cfol::AugmentPlan plans[] = {
      {kRanges, nullptr, &rng, 5}, {kRanges, given.data(), nullptr, 0}, {kRanges, nullptr, nullptr, 0}};
  for (const cfol::AugmentPlan& plan : plans) {
    for (const bool other : {false, true}) {
      const cfol::Frame frame{batch, images.channels, height, width, other, other};
      std::vector<float> out(static_cast<size_t>(batch * images.channels * frame.plane()));
      RUN(gather_augment, images, idx.data(), plan, frame, out.data(), &fault);
      std::vector<cfol::AugmentParameters> drawn(idx.size());
      RUN(augment_parameters, images, idx.data(), plan, frame, drawn.data(), &fault);
    }
  }
}

}  // namespace

// 7 x 9 pixels in a window of 8 x 5, larger and smaller than the image; every byte belongs to an image, so that reading one
// more is seen.
EXERCISE(augment) {
  for (const int64_t channels : {1, 3}) {
    const std::vector<uint8_t> bytes(static_cast<size_t>(4 * 7 * 9 * channels), 200);
    const int64_t size = static_cast<int64_t>(bytes.size());
    const cfol::ImageStore same{bytes.data(), size, nullptr, 4, channels, 7, 9};
    run_all(same, {0, 3, 3, -1, 4}, 8, 5);
    run_all(same, {}, 8, 5);
    const std::vector<int64_t> table = {0, 7, 9, size - 4 * channels, 2, 2, size - channels, 1, 2};  // the last does not fit
    run_all({bytes.data(), size, table.data(), 3, channels, 0, 0}, {0, 1, 2}, 8, 5);
  }
  const std::vector<uint8_t> bytes(static_cast<size_t>(2 * 130 * 130 * 3), 100);  // large enough for two CPU threads
  run_all({bytes.data(), static_cast<int64_t>(bytes.size()), nullptr, 2, 3, 130, 130}, {0, 1}, 128, 128);
}
