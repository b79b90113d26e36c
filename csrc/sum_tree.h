// Exp3 over the N examples (FOL): a tree of integer sums, sixteen children per node, from which an example is drawn in
// proportion to exp(w), and whose sums are updated in O(log N) when a w changes.
//
// Everything that is added up is an integer, so the order of additions cannot matter and every duplicate in a batch counts.
// The weights w are kept in units of 2^-36 and at most kRebuildAt above 0; when one would exceed that, all are shifted so
// that the largest is 0 and the tree is summed again. The softmax does not change, and no number can overflow.
#pragma once

#include <cstdint>

#include "exp.h"
#include "faults.h"
#include "fixed_point.h"
#include "philox.h"

namespace cfol {

constexpr int64_t kFanOut = 16;
constexpr int kMaxLevels = 8;
constexpr int64_t kMaxLeaves = int64_t{1} << 31;
constexpr int64_t kMaxTreeBatch = int64_t{1} << 20;
constexpr double kWeightUnit = 0x1p-36;
constexpr int64_t kRebuildAt = int64_t{11} << 35;    // 5.5: a leaf stays below 2^8 times its value at w = 0
constexpr int64_t kLargestGain = int64_t{64} << 36;  // of one example: 2^20 of them in a batch stay below 2^63
constexpr int64_t kSmallestWeight = -(int64_t{1} << 58);

// Where the levels begin in one array: level 0 is the leaves, level `levels` the root, each padded with zeros to whole
// nodes.
struct TreeLayout {
  int64_t leaves;
  int levels;
  int64_t offset[kMaxLevels + 1];
  int leaf_bits;  // a leaf of w = 0 weighs 2^leaf_bits

  CFOL_HD int64_t root() const { return offset[levels]; }
  CFOL_HD int64_t size() const { return root() + 1; }
};

inline TreeLayout tree_layout(int64_t leaves) {
  TreeLayout layout = {leaves, 0, {}, 54};
  while ((int64_t{1} << (54 - layout.leaf_bits)) < leaves) --layout.leaf_bits;
  if (layout.leaf_bits > 40) layout.leaf_bits = 40;
  int64_t width = leaves, end = 0;
  do {
    layout.offset[layout.levels++] = end;
    width = (width + kFanOut - 1) / kFanOut;
    end += width * kFanOut;
  } while (width > 1);
  layout.offset[layout.levels] = end;
  return layout;
}

// The state beside the tree: how far the latest update shifted the weights (0: not at all), and how often that has happened.
struct TreeMeta {
  int64_t shift, rebuilds;
};

CFOL_HD int64_t leaf_units(int64_t w, int leaf_bits) {
  const double x = static_cast<double>(w) * kWeightUnit;
  return integer_part(exp_portable(x >= -40.0 ? x : -40.0) * static_cast<double>(int64_t{1} << leaf_bits));
}

CFOL_HD int64_t shifted_weight(int64_t w, int64_t shift) {
  return w - shift > kSmallestWeight ? w - shift : kSmallestWeight;
}

// What an example gains, in units of w: at most 64, beyond which the softmax would not change any more.
CFOL_HD int64_t tree_gain(float loss, double p, double eta) {
  const double units = rint(eta * static_cast<double>(loss) / p * (1.0 / kWeightUnit));
  return units < static_cast<double>(kLargestGain) ? static_cast<int64_t>(units) : kLargestGain;
}

// One step down from the node whose first child is at `children`: the child that t falls in; t is made relative to it.
// There is no branch, so the sixteen comparisons of several draws overlap.
CFOL_HD int64_t find_child(const int64_t* children, int64_t* t) {
  int64_t sum = 0, before = 0, child = 0;
  for (int64_t j = 0; j < kFanOut - 1; ++j) {
    sum += children[j];
    const bool beyond = *t >= sum;
    before = beyond ? sum : before;
    child += beyond;
  }
  *t -= before;
  return child;
}

// The uniform distribution is mixed in by a threshold on 53 random bits, which is exact in integers.
struct TreeDraw {
  int64_t node;  // the leaf of a uniform draw, the root (0) of one that goes down the tree
  int64_t t;     // where in the root's sum; -1: uniform
};

// random: the numbers of the stream kExampleDraw for the draw's slot.
CFOL_HD TreeDraw start_draw(Random2 random, double gamma, int64_t leaves, int64_t total) {
  const uint64_t threshold = static_cast<uint64_t>(gamma * 0x1p53);
  if ((random.first >> 11) < threshold)
    return {static_cast<int64_t>(uniform_below(random.second, static_cast<uint64_t>(leaves))), -1};
  return {0, static_cast<int64_t>(uniform_below(random.second, static_cast<uint64_t>(total)))};
}

CFOL_HD double tree_chance(int64_t leaf, int64_t total, double gamma, int64_t leaves) {
  return gamma / static_cast<double>(leaves) + (1.0 - gamma) * (static_cast<double>(leaf) / static_cast<double>(total));
}

namespace cpu {
void sum_tree_build(int64_t* tree, int64_t* w, TreeMeta* meta, TreeLayout layout);
void sum_tree_draw(const int64_t* tree, TreeLayout layout, double gamma, RngState* rng, int64_t n, int64_t* idx, double* p);
void sum_tree_update(int64_t* tree, int64_t* w, TreeMeta* meta, TreeLayout layout, const int64_t* idx, const float* loss,
                     const double* p, int64_t n, double eta, int32_t* fault);
}  // namespace cpu

namespace cuda {
const char* sum_tree_build(int64_t* tree, int64_t* w, TreeMeta* meta, TreeLayout layout, void* stream);
const char* sum_tree_draw(const int64_t* tree, TreeLayout layout, double gamma, RngState* rng, int64_t n, int64_t* idx,
                          double* p, void* stream);
const char* sum_tree_update(int64_t* tree, int64_t* w, TreeMeta* meta, TreeLayout layout, const int64_t* idx,
                            const float* loss, const double* p, int64_t n, double eta, int32_t* fault, void* stream);
}  // namespace cuda

}  // namespace cfol
