#include "../sum_tree.h"

#include <algorithm>

#include "../parallel.h"
#include "random_span.h"

namespace cfol::cpu {
namespace {

constexpr int64_t kDrawGrain = 1024;  // draws a thread takes at least
constexpr int64_t kChunk = 32;        // draws that go down the tree together, so that their cache misses overlap
constexpr int64_t kLeafGrain = 1 << 12;

CFOL_SIMD(void, fill_leaves, (int64_t * leaves, int64_t* w, int64_t shift, int64_t n, int leaf_bits)) {
  for (int64_t i = 0; i < n; ++i) {
    w[i] = shifted_weight(w[i], shift);
    leaves[i] = leaf_units(w[i], leaf_bits);
  }
}

CFOL_SIMD(int64_t, largest_of, (const int64_t* w, int64_t n)) {
  int64_t largest = w[0];
  for (int64_t i = 1; i < n; ++i) largest = w[i] > largest ? w[i] : largest;
  return largest;
}

void rebuild(int64_t* tree, int64_t* w, int64_t shift, const TreeLayout& layout) {
  parallel_for(layout.leaves, kLeafGrain, [&](int64_t begin, int64_t end) {
    fill_leaves(tree + begin, w + begin, shift, end - begin, layout.leaf_bits);
  });
  for (int level = 1; level <= layout.levels; ++level) {
    const int64_t* children = tree + layout.offset[level - 1];
    int64_t* nodes = tree + layout.offset[level];
    parallel_for((layout.offset[level] - layout.offset[level - 1]) / kFanOut, kLeafGrain, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        int64_t sum = 0;
        for (int64_t j = 0; j < kFanOut; ++j) sum += children[i * kFanOut + j];
        nodes[i] = sum;
      }
    });
  }
}

// Adds a leaf's change to all nodes above it; for the second of two duplicates the change is 0.
void refresh_leaf(int64_t* tree, int64_t w, int64_t leaf, const TreeLayout& layout) {
  const int64_t units = leaf_units(w, layout.leaf_bits), change = units - tree[leaf];
  if (change == 0) return;
  tree[leaf] = units;
  int64_t node = leaf;
  for (int level = 1; level <= layout.levels; ++level) tree[layout.offset[level] + (node /= kFanOut)] += change;
}

}  // namespace

void sum_tree_build(int64_t* tree, int64_t* w, TreeMeta* meta, TreeLayout layout) {
  std::fill_n(tree, layout.size(), int64_t{0});
  *meta = {largest_of(w, layout.leaves), 0};
  rebuild(tree, w, meta->shift, layout);
}

void sum_tree_draw(const int64_t* tree, TreeLayout layout, double gamma, RngState* rng, int64_t n, int64_t* idx, double* p) {
  const RngState state = *rng;
  const int64_t total = tree[layout.root()];
  parallel_for(n, kDrawGrain, [&](int64_t begin, int64_t end) {
    for (int64_t first = begin; first < end; first += kChunk) {
      const int64_t count = std::min(kChunk, end - first);
      Random2 random[kChunk];
      TreeDraw draws[kChunk];
      random_span(state, Stream::kExampleDraw, first, count, random);
      for (int64_t i = 0; i < count; ++i) draws[i] = start_draw(random[i], gamma, layout.leaves, total);
      for (int level = layout.levels - 1; level >= 0; --level)
        for (int64_t i = 0; i < count; ++i) {
          TreeDraw& draw = draws[i];
          if (draw.t < 0) continue;
          draw.node = draw.node * kFanOut + find_child(tree + layout.offset[level] + draw.node * kFanOut, &draw.t);
        }
      for (int64_t i = 0; i < count; ++i) {
        idx[first + i] = draws[i].node;
        p[first + i] = tree_chance(tree[draws[i].node], total, gamma, layout.leaves);
      }
    }
  });
  rng->step += 1;
}

void sum_tree_update(int64_t* tree, int64_t* w, TreeMeta* meta, TreeLayout layout, const int64_t* idx, const float* loss,
                     const double* p, int64_t n, double eta, int32_t*) {
  for (int64_t i = 0; i < n; ++i) w[idx[i]] += tree_gain(loss[i], p[i], eta);
  meta->shift = 0;
  for (int64_t i = 0; i < n; ++i)
    if (w[idx[i]] > kRebuildAt) meta->shift = std::max(meta->shift, w[idx[i]]);
  if (meta->shift > 0) {
    rebuild(tree, w, meta->shift, layout);
    meta->rebuilds += 1;
  } else {
    for (int64_t i = 0; i < n; ++i) refresh_leaf(tree, w[idx[i]], idx[i], layout);
  }
}

}  // namespace cfol::cpu
