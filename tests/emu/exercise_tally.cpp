#include "../../csrc/tally.h"

#include "exercise.h"

EXERCISE(tally) {
  std::vector<int64_t> tally(2 * 3), y(1000);
  std::vector<float> loss(1000, 1.0f);
  // two faults at once: the fault word is shared
  loss[0] = loss[1] = 2.0f;
  for (size_t i = 0; i < y.size(); ++i) y[i] = static_cast<int64_t>(i % 3);
  int32_t fault = 0;
  for (const int64_t n : {0, 1, 1000}) RUN(class_tally, tally.data(), 3, y.data(), loss.data(), n, &fault);
}
