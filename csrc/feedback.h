// What the bandits and the tally have in common: checks of a batch's labels (or indices) and losses, and scratch memory.
#pragma once

#include <memory>

#include "fixed_point.h"
#include "tensor.h"

namespace cfol {

struct Feedback {
  const int64_t* y;
  const float* loss;
  int64_t n;
};

// Two loops that look at every value before they answer: without an early exit they run in vector registers.
inline bool all_valid(const Feedback& feedback, int64_t limit) {
  uint64_t outside = 0;  // its highest bit collects the signs of y and of limit - 1 - y
  int32_t bad = 0;
  for (int64_t i = 0; i < feedback.n; ++i)
    outside |=
        static_cast<uint64_t>(feedback.y[i]) | (static_cast<uint64_t>(limit - 1) - static_cast<uint64_t>(feedback.y[i]));
  for (int64_t i = 0; i < feedback.n; ++i)
    bad |= int32_t{!(feedback.loss[i] >= 0.0f)} | int32_t{!(feedback.loss[i] <= 1.0f)};
  return outside >> 63 == 0 && bad == 0;
}

// y in [0, limit) and loss in [0, 1], one of each for every example; on the CPU the values are checked, too.
template <class Device>
Feedback feedback_of(const Tensor& y, const char* y_name, const Tensor& loss, const Tensor& state, const char* state_name,
                     int64_t limit) {
  check_vector(y, ScalarType::Long, -1, y_name);
  const int64_t n = y.size(0);
  check_vector(loss, ScalarType::Float, n, "loss");
  check_same_device(y, state, y_name, state_name);
  check_same_device(loss, state, "loss", state_name);
  const Feedback feedback = {y.const_data_ptr<int64_t>(), loss.const_data_ptr<float>(), n};
  if constexpr (!Device::kCuda) {
    if (all_valid(feedback, limit)) return feedback;
    for (int64_t i = 0; i < n; ++i) {
      if (feedback.y[i] < 0 || feedback.y[i] >= limit)
        value_error(y_name, " must be in [0, ", limit, "), got ", feedback.y[i], " for example ", i);
      if (!loss_is_valid(feedback.loss[i]))
        value_error("loss must be in [0, 1], got ", feedback.loss[i], " for example ", i);
    }
  }
  return feedback;
}

inline void check_eta(double eta) {
  if (!(eta >= 0.0 && eta <= 1e9)) value_error("eta must be in [0, 1e9], got ", eta);
}

// Scratch memory of one call: from torch's allocator on a GPU, which knows the stream; plain memory on the CPU, which is
// faster.
template <class Device, class T>
class Workspace {
 public:
  Workspace(const Tensor& like, int64_t length) {
    static_assert(sizeof(T) == sizeof(int64_t));
    if constexpr (Device::kCuda)
      tensor_ = new_vector(like, ScalarType::Long, length);
    else
      memory_.reset(new T[static_cast<size_t>(length)]);
  }
  T* data() const {
    if constexpr (Device::kCuda)
      return static_cast<T*>(tensor_->mutable_data_ptr());
    else
      return memory_.get();
  }

 private:
  std::optional<Tensor> tensor_;
  std::unique_ptr<T[]> memory_;
};

}  // namespace cfol
