#include "../../csrc/permutation.h"

#include "exercise.h"

EXERCISE(permutation) {
  const cfol::RngState rng{42, 7};
  std::vector<int64_t> out(600);
  const int64_t beginning = 0, near_the_end = (int64_t{1} << 40) - 65, in_the_middle = 250;
  for (const int64_t n : {1, 2, 600}) RUN(permutation, &rng, n, &beginning, n, out.data());
  RUN(permutation, &rng, int64_t{1} << 40, &near_the_end, 65, out.data());
  RUN(permutation, &rng, 300, &in_the_middle, 600, out.data());
}
