#include "../../csrc/uniform.h"

#include "exercise.h"

EXERCISE(uniform) {
  const cfol::RngState rng{42, 7};
  std::vector<float> out(5003);
  for (const int64_t first : {int64_t{0}, int64_t{3}, cfol::kMaxNumber - 5003})
    for (const int64_t n : {0, 1, 2, 5003}) RUN(uniform, &rng, cfol::Stream::kAugment, first, n, out.data());
#if !defined(CFOL_SIDE_CUDA)  // large enough for two CPU threads; pieces that begin and end inside a slot
  std::vector<float> many((1 << 16) + 3);
  RUN(uniform, &rng, cfol::Stream::kAugment, 2, (1 << 16) + 3, many.data());
#endif
}
