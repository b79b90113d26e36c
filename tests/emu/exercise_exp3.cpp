#include "../../csrc/exp3.h"

#include "exercise.h"

// Fewer classes than a warp, and several tiles with a rest; a batch of several blocks and of two CPU threads.
EXERCISE(exp3) {
  for (const int64_t k : {2, 700}) {
    const size_t size = static_cast<size_t>(k);
    std::vector<double> w(size), base(size, 1.0 / static_cast<double>(k)), p(size), q(size);
    std::vector<int64_t> cdf(size), sums(size), offsets(size + 1), members(3 * size);
    for (size_t i = 0; i < size; ++i) w[i] = 0.01 * static_cast<double>(i % 17);
    for (size_t i = 0; i <= size; ++i) offsets[i] = static_cast<int64_t>(3 * i);
    for (size_t i = 0; i < members.size(); ++i) members[i] = static_cast<int64_t>(i);
    const cfol::ClassMembers classes{offsets.data(), members.data(), 3 * k};
    cfol::RngState rng{42, 7};
    int32_t fault = 0;
    for (const int64_t n : {5, 2100}) {
      std::vector<int64_t> idx(static_cast<size_t>(n)), y(static_cast<size_t>(n));
      std::vector<float> loss(static_cast<size_t>(n), 0.75f);
      // two faults at once: the fault word is shared
      loss[0] = loss[1] = 2.0f;
      RUN(exp3_distribution, w.data(), base.data(), k, 0.5, p.data(), n == 5 ? q.data() : nullptr, cdf.data());
      RUN(exp3_draw, cdf.data(), k, classes, &rng, n, idx.data(), y.data());
      RUN(exp3_update, w.data(), p.data(), k, y.data(), loss.data(), n, 0.1, sums.data(), &fault);
      std::vector<int64_t> tally(2 * size), seen(2 * size), one(2);
      for (const int64_t label : y) {
        tally[2 * static_cast<size_t>(label)] += 1;
        tally[2 * static_cast<size_t>(label) + 1] += int64_t{1} << 29;
      }
      RUN(exp3_learn, w.data(), p.data(), k, tally.data(), seen.data(), k, 0.1, &fault);
      RUN(exp3_learn, w.data(), p.data(), k, tally.data(), one.data(), int64_t{1}, 0.1, &fault);
    }
  }
}

// The edges between classes, which random draws hit once in 2^52 times: a class without weight is never found.
EXERCISE(exp3_edges) {
  const int64_t cdf[] = {3, 3, 5, 10};
  const int64_t expected[][2] = {{0, 0}, {2, 0}, {3, 2}, {4, 2}, {5, 3}, {9, 3}};  // t, class
  for (const auto& row : expected)
    if (cfol::find_class(cdf, 4, row[0]) != row[1]) exercise::check("a class's edge is in the wrong place");
}
