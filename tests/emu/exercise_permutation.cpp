#include "../../csrc/permutation.h"

#include "exercise.h"

EXERCISE(permutation) {
  const cfol::RngState rng{42, 7};
  std::vector<int64_t> out(600);
  for (const int64_t n : {1, 2, 600}) RUN(permutation, &rng, n, 0, n, out.data());
  RUN(permutation, &rng, int64_t{1} << 40, (int64_t{1} << 40) - 65, 65, out.data());
}
