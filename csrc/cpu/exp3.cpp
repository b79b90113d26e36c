#include "../exp3.h"

#include <algorithm>
#include <atomic>

#include "../parallel.h"
#include "random_span.h"

namespace cfol::cpu {
namespace {

constexpr int64_t kGrain = 2048;  // draws a thread takes at least
constexpr int64_t kChunk = 128;   // draws whose random numbers are made together
constexpr int64_t kClassesGrain =
    4096;  // classes a thread takes at least; to wake another one takes as long as some of them

// Many running maxima: with one, or those of one register, every comparison would wait for the one before it.
CFOL_SIMD(double, largest_of, (const double* w, int64_t k)) {
  constexpr int kLanes = 32;
  double lanes[kLanes];
  for (int j = 0; j < kLanes; ++j) lanes[j] = -HUGE_VAL;
  int64_t i = 0;
  for (; i + kLanes <= k; i += kLanes)
    for (int j = 0; j < kLanes; ++j) lanes[j] = w[i + j] > lanes[j] ? w[i + j] : lanes[j];
  for (; i < k; ++i) lanes[0] = w[i] > lanes[0] ? w[i] : lanes[0];
  for (int j = 1; j < kLanes; ++j) lanes[0] = lanes[j] > lanes[0] ? lanes[j] : lanes[0];
  return lanes[0];
}

CFOL_SIMD(int64_t, softmax_span, (const double* w, double largest, int64_t k, int64_t* units)) {
  int64_t sum = 0;
  for (int64_t i = 0; i < k; ++i) {
    units[i] = softmax_units(w[i], largest);
    sum += units[i];
  }
  return sum;
}

// units: in, those of the softmax; out, those of p.
CFOL_SIMD(void, mix_span, (const double* base, double gamma, double sum, int64_t k, double* p, int64_t* units)) {
  for (int64_t i = 0; i < k; ++i) {
    p[i] = mixed(base[i], exact_double(units[i]) / sum, gamma);
    units[i] = cdf_units(p[i]);
  }
}

CFOL_SIMD(void, softmax_of_units, (const int64_t* units, double sum, int64_t k, double* q)) {
  for (int64_t i = 0; i < k; ++i) q[i] = exact_double(units[i]) / sum;
}

CFOL_SIMD(void, common_span, (double* w, const int64_t* seen, int64_t mean, double n, double eta, int64_t k)) {
  for (int64_t i = 0; i < k; ++i) w[i] += common_gain(n, baseline_units(seen + 2 * i, mean), eta);
}

CFOL_SIMD(void, shift_span, (double* w, double by, int64_t k)) {
  for (int64_t i = 0; i < k; ++i) w[i] -= by;
}

// Weights that grew too large are shifted, which does not change the softmax.
void keep_small(double* w, int64_t k) {
  const double largest = largest_of(w, k);
  if (largest > kLargestWeight) shift_span(w, largest, k);
}

struct Row {
  int64_t draws, losses;
};

CFOL_SIMD(Row, sum_of, (const int64_t* rows, int64_t length)) {
  int64_t draws = 0, losses = 0;
  for (int64_t i = 0; i < length; ++i) {
    draws += rows[2 * i];
    losses += rows[2 * i + 1];
  }
  return {draws, losses};
}

}  // namespace

void exp3_distribution(const double* w, const double* base, int64_t k, double gamma, double* p, double* q, int64_t* cdf) {
  const double largest = largest_of(w, k);
  std::atomic<int64_t> units{0};  // of integers: in whatever order the threads add theirs
  parallel_for(k, kClassesGrain, [&](int64_t i, int64_t end) { units += softmax_span(w + i, largest, end - i, cdf + i); });
  const double sum = static_cast<double>(units.load());
  parallel_for(k, kClassesGrain, [&](int64_t i, int64_t end) {
    if (q != nullptr) softmax_of_units(cdf + i, sum, end - i, q + i);
    mix_span(base + i, gamma, sum, end - i, p + i, cdf + i);
  });
  int64_t total = 0;
  for (int64_t i = 0; i < k; ++i) cdf[i] = total += cdf[i];
}

void exp3_draw(const int64_t* cdf, int64_t k, ClassMembers classes, RngState* rng, int64_t n, int64_t* idx, int64_t* y) {
  const RngState state = *rng;
  parallel_for(n, kGrain, [&](int64_t begin, int64_t end) {
    Random2 random[kChunk];
    for (int64_t first = begin; first < end; first += kChunk) {
      const int64_t count = std::min(kChunk, end - first);
      random_span(state, Stream::kClassDraw, first, count, random);
      for (int64_t i = 0; i < count; ++i) {
        const ClassDraw draw = draw_example(cdf, k, classes, random[i]);
        idx[first + i] = draw.index;
        y[first + i] = draw.label;
      }
    }
  });
  rng->step += 1;
}

void exp3_update(double* w, const double* p, int64_t k, const int64_t* y, const float* loss, int64_t n, double eta,
                 int64_t* sums, int32_t*) {
  // Only the classes in y are looked at: they may be few of many.
  for (int64_t i = 0; i < n; ++i) sums[y[i]] = 0;
  for (int64_t i = 0; i < n; ++i) sums[y[i]] += loss_units(loss[i]);
  for (int64_t i = 0; i < n; ++i) {
    int64_t& sum = sums[y[i]];
    if (sum != 0) w[y[i]] += gain(sum, eta, p[y[i]]);
    sum = 0;  // a class gains once
  }
  keep_small(w, k);
}

void exp3_learn(double* w, const double* p, int64_t k, const int64_t* tally, int64_t* seen, int64_t rows, double eta,
                int32_t*) {
  const bool one = rows == 1;
  const Row all = sum_of(seen, rows), batch = sum_of(tally, k);
  const int64_t mean = mean_units(all.draws, all.losses);
  // With one baseline for all, n b is the same for every class, and the softmax does not see it.
  if (!one) common_span(w, seen, mean, static_cast<double>(batch.draws), eta, k);
  for (int64_t i = 0; i < k; ++i) {
    const int64_t* drawn = tally + 2 * i;
    if (drawn[0] == 0) continue;
    int64_t* row = seen + 2 * i;
    w[i] += own_gain(drawn, one ? mean : baseline_units(row, mean), eta, p[i]);
    if (!one) remember(row, drawn[0], drawn[1]);
  }
  if (one) remember(seen, batch.draws, batch.losses);
  keep_small(w, k);
}

}  // namespace cfol::cpu
