#include "../../csrc/sum_tree.h"

#include "exercise.h"

// Trees of two and four levels; updates that change leaves (with duplicates), and one that makes the tree rebuild itself.
EXERCISE(sum_tree) {
  for (const int64_t leaves : {17, 4400}) {
    const cfol::TreeLayout layout = cfol::tree_layout(leaves);
    const int64_t n = leaves < 100 ? 40 : 1100;
    const size_t size = static_cast<size_t>(n);
    std::vector<int64_t> tree(static_cast<size_t>(layout.size())), w(static_cast<size_t>(leaves), 5), idx(size);
    std::vector<double> p(size);
    std::vector<float> loss(size, 0.5f);
    // two faults at once: the fault word is shared
    loss[0] = loss[1] = 2.0f;
    cfol::TreeMeta meta{0, 0};
    cfol::RngState rng{42, 7};
    int32_t fault = 0;
    RUN(sum_tree_build, tree.data(), w.data(), &meta, layout);
    for (const double eta : {1e-6, 10.0}) {
      RUN(sum_tree_draw, tree.data(), layout, 0.5, &rng, n, idx.data(), p.data());
      RUN(sum_tree_update, tree.data(), w.data(), &meta, layout, idx.data(), loss.data(), p.data(), n, eta, &fault);
    }
    if (meta.rebuilds == 0) exercise::check("the tree was never rebuilt");
  }
}

// The edges between children, which random draws hit once in 2^40 times: t at a child's sum belongs to the next one that
// weighs something, never to an empty one.
EXERCISE(sum_tree_edges) {
  const int64_t children[cfol::kFanOut] = {3, 0, 2, 5};
  const int64_t expected[][3] = {{0, 0, 0}, {2, 0, 2}, {3, 2, 0}, {4, 2, 1}, {5, 3, 0}, {9, 3, 4}};  // t, child, rest
  for (const auto& row : expected) {
    int64_t t = row[0];
    if (cfol::find_child(children, &t) != row[1] || t != row[2]) exercise::check("a child's edge is in the wrong place");
  }
}
