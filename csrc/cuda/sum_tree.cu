#include "../sum_tree.h"

#include "atomic64.h"
#include "launch.h"

namespace cfol::cuda {
namespace {

// Adds a change of level 0 (a leaf) or 1 (a node over leaves) to all nodes above it.
__device__ void add_above(int64_t* tree, const TreeLayout& layout, int level, int64_t node, int64_t change) {
  for (++level; level <= layout.levels; ++level) add64(tree + layout.offset[level] + (node /= kFanOut), change);
}

__device__ void clear_from(int64_t* tree, int64_t begin, int64_t end) {
  for (int64_t i = begin + first_element(); i < end; i += grid_stride()) tree[i] = 0;
}

// Where the nodes begin that a rebuild adds to.
__device__ int64_t above_nodes(const TreeLayout& layout) { return layout.levels >= 2 ? layout.offset[2] : layout.size(); }

__global__ void __launch_bounds__(kThreads)
    draw_kernel(const int64_t* __restrict__ tree, TreeLayout layout, double gamma, const RngState* __restrict__ rng,
                int64_t n, int64_t* __restrict__ idx, double* __restrict__ p) {
  const int64_t total = tree[layout.root()];
  for (int64_t i = first_element(); i < n; i += grid_stride()) {
    TreeDraw draw = start_draw(random2(*rng, Stream::kExampleDraw, static_cast<uint64_t>(i)), gamma, layout.leaves, total);
    if (draw.t >= 0)
      for (int level = layout.levels - 1; level >= 0; --level)
        draw.node = draw.node * kFanOut + find_child(tree + layout.offset[level] + draw.node * kFanOut, &draw.t);
    idx[i] = draw.node;
    p[i] = tree_chance(tree[draw.node], total, gamma, layout.leaves);
  }
}

// The kernels of an update follow each other; what the next one must know is in meta, so that nothing is read back.
// 1. All gains are added. The first thread takes back the previous update's shift, which no other kernel reads meanwhile.
__global__ void __launch_bounds__(kThreads)
    gain_kernel(int64_t* __restrict__ w, TreeMeta* __restrict__ meta, int64_t leaves, const int64_t* __restrict__ idx,
                const float* __restrict__ loss, const double* __restrict__ p, int64_t n, double eta, int32_t* fault) {
  if (first_element() == 0) meta->shift = 0;
  int32_t flags = 0;
  for (int64_t i = first_element(); i < n; i += grid_stride()) {
    if (!loss_is_valid(loss[i])) flags |= kFaultLoss;
    if (idx[i] < 0 || idx[i] >= leaves)
      flags |= kFaultIndex;
    else if (!chance_is_valid(p[i]))
      flags |= kFaultChance;
    else
      add64(w + idx[i], tree_gain(clamped_loss(loss[i]), p[i], eta));
  }
  raise_faults(fault, flags);
}

// 2. Has a weight grown too large? Only those of this batch can have.
__global__ void __launch_bounds__(kThreads) shift_kernel(const int64_t* __restrict__ w, TreeMeta* __restrict__ meta,
                                                         int64_t leaves, const int64_t* __restrict__ idx, int64_t n) {
  for (int64_t i = first_element(); i < n; i += grid_stride())
    if (idx[i] >= 0 && idx[i] < leaves && w[idx[i]] > kRebuildAt) raise_to64(&meta->shift, w[idx[i]]);
}

// 3. If not, the batch's leaves change, and the nodes above them: the atomic exchange lets only one of several duplicates do
// it. If so, the nodes that step 4 adds to are cleared.
__global__ void __launch_bounds__(kThreads)
    refresh_kernel(int64_t* __restrict__ tree, const int64_t* __restrict__ w, const TreeMeta* __restrict__ meta,
                   TreeLayout layout, const int64_t* __restrict__ idx, int64_t n) {
  if (meta->shift != 0) return clear_from(tree, above_nodes(layout), layout.size());
  for (int64_t i = first_element(); i < n; i += grid_stride()) {
    const int64_t leaf = idx[i];
    if (leaf < 0 || leaf >= layout.leaves) continue;
    const int64_t units = leaf_units(w[leaf], layout.leaf_bits);
    const int64_t change = units - exchange64(tree + leaf, units);
    if (change != 0) add_above(tree, layout, 0, leaf, change);
  }
}

// 4. Shifts all weights and makes all leaves and sums new; a thread takes the leaves of one node. Always launched, but it
// returns at once unless a weight has grown too large.
__global__ void __launch_bounds__(kThreads) rebuild_kernel(int64_t* __restrict__ tree, int64_t* __restrict__ w,
                                                           TreeMeta* __restrict__ meta, TreeLayout layout, bool build) {
  const int64_t shift = meta->shift;
  if (shift == 0 && !build) return;
  if (first_element() == 0 && !build) meta->rebuilds += 1;
  const int64_t nodes = (layout.leaves + kFanOut - 1) / kFanOut;
  for (int64_t node = first_element(); node < nodes; node += grid_stride()) {
    int64_t sum = 0;
    for (int64_t i = node * kFanOut; i < (node + 1) * kFanOut && i < layout.leaves; ++i) {
      w[i] = shifted_weight(w[i], shift);
      tree[i] = leaf_units(w[i], layout.leaf_bits);
      sum += tree[i];
    }
    tree[layout.offset[1] + node] = sum;
    add_above(tree, layout, 1, node, sum);
  }
}

__global__ void __launch_bounds__(kThreads)
    clear_kernel(int64_t* __restrict__ tree, TreeMeta* __restrict__ meta, TreeLayout layout) {
  clear_from(tree, 0, layout.size());
  if (first_element() == 0) *meta = {INT64_MIN, 0};
}

__global__ void __launch_bounds__(kThreads)
    largest_kernel(const int64_t* __restrict__ w, TreeMeta* __restrict__ meta, int64_t leaves) {
  int64_t largest = INT64_MIN;
  for (int64_t i = first_element(); i < leaves; i += grid_stride()) largest = w[i] > largest ? w[i] : largest;
  for (int offset = 16; offset > 0; offset >>= 1) {
    const int64_t other = __shfl_xor_sync(kAllLanes, largest, offset);
    largest = other > largest ? other : largest;
  }
  if ((threadIdx.x & 31) == 0) raise_to64(&meta->shift, largest);
}

int64_t rebuild_blocks(const TreeLayout& layout) { return blocks_for((layout.leaves + kFanOut - 1) / kFanOut); }

}  // namespace

const char* sum_tree_build(int64_t* tree, int64_t* w, TreeMeta* meta, TreeLayout layout, void* stream) {
  const char* error = launch(clear_kernel, blocks_for(layout.size()), stream, tree, meta, layout);
  if (error == nullptr) error = launch(largest_kernel, blocks_for(layout.leaves), stream, w, meta, layout.leaves);
  if (error == nullptr) error = launch(rebuild_kernel, rebuild_blocks(layout), stream, tree, w, meta, layout, true);
  return error;
}

const char* sum_tree_draw(const int64_t* tree, TreeLayout layout, double gamma, RngState* rng, int64_t n, int64_t* idx,
                          double* p, void* stream) {
  if (n > 0) {
    const char* error = launch(draw_kernel, blocks_for(n), stream, tree, layout, gamma, rng, n, idx, p);
    if (error != nullptr) return error;
  }
  return advance_rng(rng, stream);
}

const char* sum_tree_update(int64_t* tree, int64_t* w, TreeMeta* meta, TreeLayout layout, const int64_t* idx,
                            const float* loss, const double* p, int64_t n, double eta, int32_t* fault, void* stream) {
  const int64_t blocks = blocks_for(n);
  const char* error = launch(gain_kernel, blocks, stream, w, meta, layout.leaves, idx, loss, p, n, eta, fault);
  if (error == nullptr) error = launch(shift_kernel, blocks, stream, w, meta, layout.leaves, idx, n);
  if (error == nullptr) error = launch(refresh_kernel, blocks, stream, tree, w, meta, layout, idx, n);
  if (error == nullptr) error = launch(rebuild_kernel, rebuild_blocks(layout), stream, tree, w, meta, layout, false);
  return error;
}

}  // namespace cfol::cuda
