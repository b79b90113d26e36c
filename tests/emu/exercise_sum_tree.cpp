#include "../../csrc/sum_tree.h"

#include "exercise.h"

// Trees of one, two and four levels; updates that change leaves, and one that makes the tree rebuild itself.
EXERCISE(sum_tree) {
  for (const int64_t leaves : {1, 16, 17, 20000}) {
    const cfol::TreeLayout layout = cfol::tree_layout(leaves);
    std::vector<int64_t> tree(static_cast<size_t>(layout.size())), w(static_cast<size_t>(leaves), 5), idx(3000);
    std::vector<double> p(3000);
    const std::vector<float> loss(3000, 0.5f);
    cfol::TreeMeta meta{0, 0};
    cfol::RngState rng{42, 7};
    int32_t fault = 0;
    RUN(sum_tree_build, tree.data(), w.data(), &meta, layout);
    for (const double eta : {1e-6, 10.0}) {
      for (const int64_t n : {0, 3, 3000}) {
        RUN(sum_tree_draw, tree.data(), layout, 0.5, &rng, n, idx.data(), p.data());
        RUN(sum_tree_update, tree.data(), w.data(), &meta, layout, idx.data(), loss.data(), p.data(), n, eta, &fault);
      }
    }
    if (meta.rebuilds == 0) exercise::check("the tree was never rebuilt");
  }
}
