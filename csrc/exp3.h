// Exp3 over the classes: the distribution p = gamma * base + (1 - gamma) * softmax(w), draws from it, and the update of w.
//
// The integer weights of the classes decide a draw, and their sums are exact: e = floor(2^40 exp(w - max w)) for the
// softmax, c = floor(2^52 p) for the draw. A class of probability 0 has weight 0 and can never be drawn.
#pragma once

#include <cstdint>

#include "exp.h"
#include "faults.h"
#include "fixed_point.h"
#include "philox.h"

namespace cfol {

constexpr int64_t kMaxClasses = int64_t{1} << 16;  // as in cfol_fast/ops/exp3.py
constexpr double kCdfScale = 0x1p52;
constexpr double kLargestWeight = 64.0;  // beyond it w is shifted to max w = 0; the softmax does not change

// The weight of a class in the softmax; -40 and below (and NaN) give 0.
CFOL_HD int64_t softmax_units(double w, double largest) {
  const double x = w - largest;
  return integer_part(exp_portable(x >= -40.0 ? x : -40.0) * 0x1p40);
}

CFOL_HD double mixed(double base, double q, double gamma) { return gamma * base + (1.0 - gamma) * q; }

// The clamp is for bad input; the p of a distribution is always in range.
CFOL_HD int64_t cdf_units(double p) { return integer_part((p > 0.0 ? (p < 1.0 ? p : 1.0) : 0.0) * kCdfScale); }

// The first class whose cdf exceeds t.
CFOL_HD int64_t find_class(const int64_t* cdf, int64_t k, int64_t t) {
  int64_t first = 0, length = k;
  while (length > 1) {
    const int64_t half = length / 2;
    first = cdf[first + half - 1] > t ? first : first + half;
    length -= half;
  }
  return first;
}

// The examples by class: those of class y are members[offsets[y] .. offsets[y + 1]).
struct ClassMembers {
  const int64_t *offsets, *members;
  int64_t examples;
};

struct ClassDraw {
  int64_t index, label;
};

// random: the numbers of the stream kClassDraw for the draw's slot.
CFOL_HD ClassDraw draw_example(const int64_t* cdf, int64_t k, ClassMembers classes, Random2 random) {
  const uint64_t total = static_cast<uint64_t>(cdf[k - 1]);
  const int64_t y = find_class(cdf, k, static_cast<int64_t>(uniform_below(random.first, total)));
  const int64_t begin = classes.offsets[y], size = classes.offsets[y + 1] - begin;
  int64_t place = begin + static_cast<int64_t>(uniform_below(random.second, static_cast<uint64_t>(size > 0 ? size : 1)));
  // Wrong offsets must not lead outside of the memory.
  place = place < 0 ? 0 : place >= classes.examples ? classes.examples - 1 : place;
  return {classes.members[place], y};
}

// What class y gains: eta times the sum of its losses, divided by the probability of being drawn.
CFOL_HD double gain(int64_t loss_sum, double eta, double p) {
  return eta * (static_cast<double>(loss_sum) / kLossScale) / p;
}

// ---- the update with a baseline -----------------------------------------------------------------------------------------
// w_y += eta * (n b_y + sum over the n draws of class y of (loss - b_y) / p_y): unbiased for every b that was fixed before
// the batch. b is kept as two integers, the draws and the sum of their losses, in a row for each class or in one for all.
constexpr int64_t kPseudoDraws = 8;  // draws with the mean of all classes that a row begins with; all begin with 1/2
constexpr int64_t kMemory = 1024;    // a row with so many draws is halved: the errors of a network that learns drift

// Adds to a row of (draws, losses). Both halves are rounded such that the mean loss never exceeds 1.
CFOL_HD void remember(int64_t* row, int64_t draws, int64_t losses) {
  draws += row[0];
  losses += row[1];
  while (draws >= kMemory) {
    draws -= draws >> 1;
    losses >>= 1;
  }
  row[0] = draws;
  row[1] = losses;
}

// The mean loss of all draws, in units of 2^-30, where so many pseudo-draws had the loss 1/2.
CFOL_HD int64_t mean_units(int64_t draws, int64_t losses) {
  const int64_t start = kPseudoDraws * (static_cast<int64_t>(kLossScale) / 2);
  return integer_part(static_cast<double>(losses + start) / static_cast<double>(draws + kPseudoDraws));
}

// The baseline of a class, in units of 2^-30: its row's mean loss, shrunk to `mean`, the mean loss of all.
CFOL_HD int64_t baseline_units(const int64_t* row, int64_t mean) {
  return integer_part(exact_double(row[1] + kPseudoDraws * mean) / exact_double(row[0] + kPseudoDraws));
}

// What every class gains in a batch of n draws, drawn or not.
CFOL_HD double common_gain(double n, int64_t baseline, double eta) {
  return eta * (n * (exact_double(baseline) / kLossScale));
}

// What a class gains beyond that by its own draws.
CFOL_HD double own_gain(const int64_t* drawn, int64_t baseline, double eta, double p) {
  return gain(drawn[1] - drawn[0] * baseline, eta, p);
}

namespace cpu {
void exp3_distribution(const double* w, const double* base, int64_t k, double gamma, double* p, double* q, int64_t* cdf);
void exp3_draw(const int64_t* cdf, int64_t k, ClassMembers classes, RngState* rng, int64_t n, int64_t* idx, int64_t* y);
void exp3_update(double* w, const double* p, int64_t k, const int64_t* y, const float* loss, int64_t n, double eta,
                 int64_t* sums, int32_t* fault);
void exp3_learn(double* w, const double* p, int64_t k, const int64_t* tally, int64_t* seen, int64_t rows, double eta,
                int32_t* fault);
}  // namespace cpu

namespace cuda {
const char* exp3_distribution(const double* w, const double* base, int64_t k, double gamma, double* p, double* q,
                              int64_t* cdf, void* stream);
const char* exp3_draw(const int64_t* cdf, int64_t k, ClassMembers classes, RngState* rng, int64_t n, int64_t* idx,
                      int64_t* y, void* stream);
const char* exp3_update(double* w, const double* p, int64_t k, const int64_t* y, const float* loss, int64_t n, double eta,
                        int64_t* sums, int32_t* fault, void* stream);
const char* exp3_learn(double* w, const double* p, int64_t k, const int64_t* tally, int64_t* seen, int64_t rows, double eta,
                       int32_t* fault, void* stream);
}  // namespace cuda

}  // namespace cfol
