// Losses as integers: their sums do not depend on the order in which threads add them.
#pragma once

#include <cmath>
#include <cstdint>

#include "platform.h"

namespace cfol {

constexpr double kLossScale = 0x1p30;  // the unit of a loss sum is 2^-30

CFOL_HD bool loss_is_valid(float loss) { return loss >= 0.0f && loss <= 1.0f; }

// NaN counts as 0, a loss outside [0, 1] as the nearest end; only a GPU needs this, since the CPU side refuses such losses.
CFOL_HD float clamped_loss(float loss) { return loss > 0.0f ? (loss < 1.0f ? loss : 1.0f) : 0.0f; }

CFOL_HD int64_t loss_units(float loss) { return static_cast<int64_t>(rint(static_cast<double>(loss) * kLossScale)); }

// Nothing is divided by a probability below this: the quotient would exceed the range of the state.
constexpr double kSmallestChance = 0x1p-60;

CFOL_HD bool chance_is_valid(double p) { return p >= kSmallestChance; }

}  // namespace cfol
