// Flags that a kernel sets on the device where the CPU would throw, since reading a value back would mean waiting for it.
// The kernel goes on with a safe value; the trainer reads the flags when it logs. `cfol_fast/ops/native.py` has the
// messages.
#pragma once

#include <cstdint>

namespace cfol {

enum Fault : int32_t {
  kFaultLabel = 1,      // a label outside [0, k): the example is skipped
  kFaultLoss = 2,       // a loss that is NaN or outside [0, 1]: NaN counts as 0, the rest is clamped
  kFaultRadius = 4,     // a negative or NaN eps or step: counts as 0
  kFaultIndex = 8,      // an index outside the data: clamped into it, or skipped by the sum tree
  kFaultChance = 16,    // a probability that is not positive: the example is skipped
  kFaultParameter = 32  // an augmentation parameter that is not finite or not allowed: the image is only cropped
};

}  // namespace cfol
