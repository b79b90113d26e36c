// cfol_fast::exp3_distribution, exp3_draw, exp3_update and exp3_learn: checks and registration.
#include "exp3.h"

#include <cfloat>
#include <cmath>
#include <tuple>

#include "feedback.h"
#include "tensor.h"

namespace cfol {
namespace {

int64_t class_count(const Tensor& w, const Tensor& other, const char* other_name) {
  check_vector(w, ScalarType::Double, -1, "w");
  const int64_t k = w.size(0);
  if (k < 2 || k > kMaxClasses) value_error("w must have from 2 to ", kMaxClasses, " classes, got ", k);
  check_vector(other, ScalarType::Double, k, other_name);
  check_same_device(other, w, other_name, "w");
  return k;
}

CFOL_SIMD(bool, weights_are_good, (const double* w, const double* base, int64_t k)) {
  int64_t bad = 0, some = 0;
  for (int64_t i = 0; i < k; ++i) {
    bad |= int64_t{!(w[i] <= DBL_MAX)} | int64_t{!(base[i] >= 0.0)} | int64_t{!(base[i] <= 1.0)};
    some |= int64_t{w[i] >= -DBL_MAX};  // -inf is a class that the softmax never draws
  }
  return bad == 0 && some != 0;
}

// Refuses bad weights and a bad mixing distribution on the CPU; on a GPU the kernels replace bad values by safe ones.
void check_weights(const double* w, const double* base, int64_t k) {
  if (weights_are_good(w, base, k)) return;
  for (int64_t i = 0; i < k; ++i) {
    if (!(w[i] <= DBL_MAX)) value_error("w must be finite, got ", w[i], " for class ", i);
    if (!(base[i] >= 0.0 && base[i] <= 1.0)) value_error("base must be in [0, 1], got ", base[i], " for class ", i);
  }
  value_error("w must have a finite value for some class");
}

template <class Device>
void distribution(const Tensor& w, const Tensor& base, int64_t k, double gamma, double* p, double* q, int64_t* cdf) {
  if (!(gamma > 0.0 && gamma <= 1.0)) value_error("gamma must be in (0, 1], got ", gamma);
  const double *weights = w.const_data_ptr<double>(), *mixing = base.const_data_ptr<double>();
  if constexpr (!Device::kCuda) check_weights(weights, mixing, k);
  const Device device(w);
  CFOL_RUN(Device, device, exp3_distribution, weights, mixing, k, gamma, p, q, cdf);
  if constexpr (!Device::kCuda) {
    // The rounding of k classes counts the more in `sum`, the smaller the share gamma of base in p is.
    const double sum = 1.0 + (static_cast<double>(cdf[k - 1]) / kCdfScale - 1.0) / gamma;
    const double rounding = 2.0 * static_cast<double>(k) / (kCdfScale * gamma);
    if (!(std::abs(sum - 1.0) <= 1e-6 + rounding)) value_error("base must sum to 1, got ", sum);
  }
}

template <class Device>
std::tuple<Tensor, Tensor, Tensor> exp3_distribution(const Tensor& w, const Tensor& base, double gamma) {
  const int64_t k = class_count(w, base, "base");
  Tensor p = new_vector(w, ScalarType::Double, k), q = new_vector(w, ScalarType::Double, k);
  Tensor cdf = new_vector(w, ScalarType::Long, k);
  distribution<Device>(w, base, k, gamma, p.mutable_data_ptr<double>(), q.mutable_data_ptr<double>(),
                       cdf.mutable_data_ptr<int64_t>());
  return {p, q, cdf};
}

CFOL_SIMD(bool, offsets_grow, (const int64_t* offsets, int64_t k)) {
  int64_t bad = 0;
  for (int64_t i = 0; i < k; ++i) bad |= int64_t{offsets[i] >= offsets[i + 1]};
  return bad == 0;
}

void check_offsets(const int64_t* offsets, int64_t k, int64_t examples) {
  if (offsets[0] == 0 && offsets[k] <= examples && offsets_grow(offsets, k)) return;
  for (int64_t i = 0; i < k; ++i)
    if (offsets[i] >= offsets[i + 1]) value_error("offsets must grow: class ", i, " has no examples");
  value_error("offsets must go from 0 to at most ", examples, " (the length of members), got ", offsets[0], " to ",
              offsets[k]);
}

template <class Device>
std::tuple<Tensor, Tensor, Tensor> exp3_draw(const Tensor& w, const Tensor& base, double gamma, const Tensor& offsets,
                                             const Tensor& members, Tensor rng, int64_t n) {
  const int64_t k = class_count(w, base, "base");
  check_vector(offsets, ScalarType::Long, k + 1, "offsets");
  check_vector(members, ScalarType::Long, -1, "members");
  check_rng(rng);
  check_same_device(offsets, w, "offsets", "w");
  check_same_device(members, w, "members", "w");
  check_same_device(rng, w, "rng", "w");
  if (n < 0) value_error("n must be at least 0, got ", n);
  if (members.size(0) == 0) value_error("members must not be empty");
  const ClassMembers classes = {offsets.const_data_ptr<int64_t>(), members.const_data_ptr<int64_t>(), members.size(0)};
  check_apart({{"rng", rng}}, {{"w", w}, {"base", base}, {"offsets", offsets}, {"members", members}});
  if constexpr (!Device::kCuda) check_offsets(classes.offsets, k, classes.examples);

  Tensor idx = new_vector(w, ScalarType::Long, n), y = new_vector(w, ScalarType::Long, n);
  Tensor p = new_vector(w, ScalarType::Double, k);
  const Workspace<Device, int64_t> cdf(w, k);
  distribution<Device>(w, base, k, gamma, p.mutable_data_ptr<double>(), nullptr, cdf.data());
  const Device device(w);
  CFOL_RUN(Device, device, exp3_draw, cdf.data(), k, classes, rng_data_mutable(rng), n, idx.mutable_data_ptr<int64_t>(),
           y.mutable_data_ptr<int64_t>());
  return {idx, y, p};
}

template <class Device>
void exp3_update(Tensor w, const Tensor& p, const Tensor& y, const Tensor& loss, double eta, std::optional<Tensor> fault) {
  const int64_t k = class_count(w, p, "p");
  const Feedback feedback = feedback_of<Device>(y, "y", loss, w, "w", k);
  check_eta(eta);
  check_apart({{"w", w}, {"fault", fault}}, {{"p", p}, {"y", y}, {"loss", loss}});
  const double* chances = p.const_data_ptr<double>();
  if constexpr (!Device::kCuda)
    for (int64_t i = 0; i < feedback.n; ++i)
      if (const double chance = chances[feedback.y[i]]; !chance_is_valid(chance))
        value_error("p must be at least 2^-60 for every class in y, got ", chance, " for class ", feedback.y[i]);
  const Workspace<Device, int64_t> sums(w, k);
  const Device device(w);
  CFOL_RUN(Device, device, exp3_update, w.mutable_data_ptr<double>(), chances, k, feedback.y, feedback.loss, feedback.n, eta,
           sums.data(), fault_data(fault, w, "w"));
}

void check_rows(const Tensor& rows, const char* name) {
  check_dtype(rows, ScalarType::Long, name);
  if (rows.dim() != 2 || rows.size(1) != 2) value_error(name, " must have shape (n, 2), got ", shape_text(rows));
  if (!rows.is_contiguous()) value_error(name, " must be contiguous");
}

// Rows of (draws, losses), the losses in [0, 1] each.
void check_counts(const int64_t* rows, int64_t length, int64_t most, const char* name) {
  for (int64_t i = 0; i < length; ++i) {
    const int64_t draws = rows[2 * i], losses = rows[2 * i + 1];
    if (draws < 0 || draws > most) value_error(name, " must count from 0 to ", most, " draws, got ", draws, " in row ", i);
    if (losses < 0 || losses > draws * static_cast<int64_t>(kLossScale))
      value_error(name, " must have losses from 0 to 1 for each draw, got a sum of ", losses, " for ", draws,
                  " draws in row ", i);
  }
}

template <class Device>
void exp3_learn(Tensor w, const Tensor& p, const Tensor& tally, Tensor seen, double eta, std::optional<Tensor> fault) {
  const int64_t k = class_count(w, p, "p");
  check_rows(tally, "tally");
  check_rows(seen, "seen");
  if (tally.size(0) != k) value_error("tally must have shape (", k, ", 2), got ", shape_text(tally));
  const int64_t rows = seen.size(0);
  if (rows != 1 && rows != k) value_error("seen must have 1 or ", k, " rows, got ", rows);
  check_same_device(tally, w, "tally", "w");
  check_same_device(seen, w, "seen", "w");
  check_eta(eta);
  check_apart({{"w", w}, {"seen", seen}, {"fault", fault}}, {{"p", p}, {"tally", tally}});
  const double* chances = p.const_data_ptr<double>();
  const int64_t* drawn = tally.const_data_ptr<int64_t>();
  int64_t* before = seen.mutable_data_ptr<int64_t>();
  if constexpr (!Device::kCuda) {
    check_counts(drawn, k, int64_t{1} << 32, "tally");
    check_counts(before, rows, kMemory - 1, "seen");
    for (int64_t i = 0; i < k; ++i)
      if (drawn[2 * i] > 0 && !chance_is_valid(chances[i]))
        value_error("p must be at least 2^-60 for every class that was drawn, got ", chances[i], " for class ", i);
  }
  const Device device(w);
  CFOL_RUN(Device, device, exp3_learn, w.mutable_data_ptr<double>(), chances, k, drawn, before, rows, eta,
           fault_data(fault, w, "w"));
}

}  // namespace

CFOL_REGISTER(exp3_distribution)
CFOL_REGISTER(exp3_draw)
CFOL_REGISTER(exp3_update)
CFOL_REGISTER(exp3_learn)

}  // namespace cfol
