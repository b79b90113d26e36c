// cfol_fast::sum_tree_build, sum_tree_draw and sum_tree_update: checks and registration.
#include "sum_tree.h"

#include <tuple>

#include "feedback.h"

namespace cfol {
namespace {

TreeLayout layout_of(const Tensor& w) {
  check_vector(w, ScalarType::Long, -1, "w");
  if (w.size(0) < 1 || w.size(0) > kMaxLeaves) value_error("w must have from 1 to 2^31 examples, got ", w.size(0));
  return tree_layout(w.size(0));
}

void check_tree(const Tensor& tree, int64_t size) { check_vector(tree, ScalarType::Long, size, "tree"); }

TreeMeta* meta_data(const Tensor& meta) {
  check_vector(meta, ScalarType::Long, 2, "meta");
  return static_cast<TreeMeta*>(meta.mutable_data_ptr());
}

template <class Device>
std::tuple<Tensor, Tensor> sum_tree_build(Tensor w) {
  const TreeLayout layout = layout_of(w);
  Tensor tree = new_vector(w, ScalarType::Long, layout.size()), meta = new_vector(w, ScalarType::Long, 2);
  const Device device(w);
  CFOL_RUN(Device, device, sum_tree_build, tree.mutable_data_ptr<int64_t>(), w.mutable_data_ptr<int64_t>(), meta_data(meta),
           layout);
  return {tree, meta};
}

template <class Device>
std::tuple<Tensor, Tensor> sum_tree_draw(const Tensor& tree, int64_t leaves, double gamma, Tensor rng, int64_t n) {
  if (leaves < 1 || leaves > kMaxLeaves) value_error("leaves must be from 1 to 2^31, got ", leaves);
  const TreeLayout layout = tree_layout(leaves);
  check_tree(tree, layout.size());
  check_rng(rng);
  check_same_device(rng, tree, "rng", "tree");
  check_apart({{"rng", rng}}, {{"tree", tree}});
  if (!(gamma > 0.0 && gamma <= 1.0)) value_error("gamma must be in (0, 1], got ", gamma);
  if (n < 0) value_error("n must be at least 0, got ", n);
  Tensor idx = new_vector(tree, ScalarType::Long, n), p = new_vector(tree, ScalarType::Double, n);
  const Device device(tree);
  CFOL_RUN(Device, device, sum_tree_draw, tree.const_data_ptr<int64_t>(), layout, gamma, rng_data_mutable(rng), n,
           idx.mutable_data_ptr<int64_t>(), p.mutable_data_ptr<double>());
  return {idx, p};
}

template <class Device>
void sum_tree_update(Tensor tree, Tensor w, Tensor meta, const Tensor& idx, const Tensor& loss, const Tensor& p, double eta,
                     std::optional<Tensor> fault) {
  const TreeLayout layout = layout_of(w);
  check_tree(tree, layout.size());
  check_same_device(tree, w, "tree", "w");
  check_same_device(meta, w, "meta", "w");
  const Feedback feedback = feedback_of<Device>(idx, "idx", loss, w, "w", layout.leaves);
  if (feedback.n > kMaxTreeBatch) value_error("idx must have at most 2^20 entries, got ", feedback.n, ": update in pieces");
  check_vector(p, ScalarType::Double, feedback.n, "p");
  check_same_device(p, w, "p", "w");
  check_eta(eta);
  check_apart({{"tree", tree}, {"w", w}, {"meta", meta}, {"fault", fault}}, {{"idx", idx}, {"loss", loss}, {"p", p}});
  const double* chances = p.const_data_ptr<double>();
  if constexpr (!Device::kCuda)
    for (int64_t i = 0; i < feedback.n; ++i)
      if (!chance_is_valid(chances[i])) value_error("p must be at least 2^-60, got ", chances[i], " for example ", i);
  const Device device(w);
  CFOL_RUN(Device, device, sum_tree_update, tree.mutable_data_ptr<int64_t>(), w.mutable_data_ptr<int64_t>(), meta_data(meta),
           layout, feedback.y, feedback.loss, chances, feedback.n, eta, fault_data(fault, tree, "tree"));
}

}  // namespace

CFOL_REGISTER(sum_tree_build)
CFOL_REGISTER(sum_tree_draw)
CFOL_REGISTER(sum_tree_update)

}  // namespace cfol
