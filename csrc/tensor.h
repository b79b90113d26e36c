// Between torch's stable ABI and the raw-pointer kernels: argument checks, the device an op runs on, registration.
// Messages start with the Python exception they become ("ValueError: ..."): `cfol_fast/ops/native.py` translates them.
#pragma once

#include <torch/csrc/stable/accelerator.h>
#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>
#include <torch/csrc/stable/tensor.h>
#include <torch/headeronly/util/Exception.h>

#include <cstdint>
#include <initializer_list>
#include <optional>
#include <sstream>
#include <stdexcept>
#include <string>

#include "philox.h"

namespace cfol {

using torch::headeronly::ScalarType;
using torch::stable::Tensor;

template <class... Parts>
[[noreturn]] void value_error(const Parts&... parts) {
  std::ostringstream message;
  message << "ValueError: ";
  (message << ... << parts);
  throw std::runtime_error(message.str());
}

template <class... Parts>
[[noreturn]] void type_error(const Parts&... parts) {
  std::ostringstream message;
  message << "TypeError: ";
  (message << ... << parts);
  throw std::runtime_error(message.str());
}

// ---- the device an op runs on -------------------------------------------------------------------------------------------
// An op is one function template over the device: the checks and allocations are the same, the kernels have the same names
// in the namespaces cpu and cuda.
struct Cpu {
  static constexpr bool kCuda = false;
  explicit Cpu(const Tensor&) {}
};

#if defined(CFOL_EMULATED)
}  // namespace cfol
extern "C" void* emulator_stream();
namespace cfol {
struct Cuda {  // the stand-in of tests/emu: CUDA kernels on CPU tensors
  static constexpr bool kCuda = true;
  void* stream = emulator_stream();
  explicit Cuda(const Tensor&) {}
};
#elif defined(CFOL_WITH_CUDA)
struct Cuda {  // the generic accelerator interface: no symbol of libtorch_cuda, so one build serves every torch
  static constexpr bool kCuda = true;
  torch::stable::accelerator::DeviceGuard guard;
  void* stream;
  explicit Cuda(const Tensor& t)
      : guard(t.get_device_index()),
        stream(torch::stable::accelerator::getCurrentStream(t.get_device_index()).nativeHandle()) {}
};
#endif

inline void check_launch(const char* error) {
  if (error != nullptr) throw std::runtime_error(std::string("CUDA: ") + error);
}

#if defined(CFOL_EMULATED)
#define CFOL_RUN(Device, device, kernel, ...) ::cfol::check_launch(cuda::kernel(__VA_ARGS__, (device).stream))
#elif defined(CFOL_WITH_CUDA)
#define CFOL_RUN(Device, device, kernel, ...)                           \
  do {                                                                  \
    if constexpr (Device::kCuda)                                        \
      ::cfol::check_launch(cuda::kernel(__VA_ARGS__, (device).stream)); \
    else                                                                \
      cpu::kernel(__VA_ARGS__);                                         \
  } while (false)
#else
#define CFOL_RUN(Device, device, kernel, ...) ((void)(device), cpu::kernel(__VA_ARGS__))
#endif

// CFOL_REGISTER(op): op<Cpu> and op<Cuda> become the kernels of cfol_fast::op; the emulated build registers op<Cuda> for CPU
// tensors under a namespace of its own.
#if defined(CFOL_EMULATED)
#define CFOL_REGISTER(op) \
  STABLE_TORCH_LIBRARY_IMPL(cfol_fast_emulated, CPU, m) { m.impl(#op, TORCH_BOX(&op<::cfol::Cuda>)); }
#elif defined(CFOL_WITH_CUDA)
#define CFOL_REGISTER(op)                                                                    \
  STABLE_TORCH_LIBRARY_IMPL(cfol_fast, CPU, m) { m.impl(#op, TORCH_BOX(&op<::cfol::Cpu>)); } \
  STABLE_TORCH_LIBRARY_IMPL(cfol_fast, CUDA, m) { m.impl(#op, TORCH_BOX(&op<::cfol::Cuda>)); }
#else
#define CFOL_REGISTER(op) \
  STABLE_TORCH_LIBRARY_IMPL(cfol_fast, CPU, m) { m.impl(#op, TORCH_BOX(&op<::cfol::Cpu>)); }
#endif

// ---- checks -------------------------------------------------------------------------------------------------------------
inline const char* dtype_name(ScalarType type) {
  switch (type) {
    case ScalarType::Float:
      return "float32";
    case ScalarType::Double:
      return "float64";
    case ScalarType::Long:
      return "int64";
    case ScalarType::Int:
      return "int32";
    case ScalarType::Byte:
      return "uint8";
    case ScalarType::Bool:
      return "bool";
    case ScalarType::BFloat16:
      return "bfloat16";
    case ScalarType::Half:
      return "float16";
    default:
      return "another dtype";
  }
}

inline std::string shape_text(const Tensor& t) {
  std::ostringstream text;
  text << "(";
  for (int64_t d = 0; d < t.dim(); ++d) text << (d ? ", " : "") << t.size(d);
  text << (t.dim() == 1 ? ",)" : ")");
  return text.str();
}

inline void check_dtype(const Tensor& t, ScalarType type, const char* name) {
  if (t.scalar_type() != type) type_error(name, " must be ", dtype_name(type), ", got ", dtype_name(t.scalar_type()));
}

inline void check_same_device(const Tensor& t, const Tensor& other, const char* name, const char* other_name) {
  if (t.device() != other.device()) value_error(name, " and ", other_name, " must be on the same device");
}

// An argument of an op that is a tensor, or none.
struct Argument {
  const char* name;
  const Tensor* tensor;

  Argument(const char* called, const Tensor& t) : name(called), tensor(&t) {}
  Argument(const char* called, const std::optional<Tensor>& t) : name(called), tensor(t.has_value() ? &*t : nullptr) {}
};

struct Addresses {
  uintptr_t from, upto;
};

// The bytes between a tensor's first and its last element.
inline Addresses addresses_of(const Tensor& t) {
  if (t.numel() == 0) return {0, 0};
  uintptr_t last = 0;
  for (int64_t d = 0; d < t.dim(); ++d) last += static_cast<uintptr_t>((t.size(d) - 1) * t.stride(d));
  const uintptr_t from = reinterpret_cast<uintptr_t>(t.const_data_ptr());
  return {from, from + (last + 1) * static_cast<uintptr_t>(t.element_size())};
}

// What an op writes may not be an argument that it also reads, nor be written twice: kernels read through a path that does
// not see writes.
inline void check_apart(std::initializer_list<Argument> written, std::initializer_list<Argument> read) {
  const auto check = [](const Argument& a, const Argument& b) {
    if (a.tensor == nullptr || b.tensor == nullptr || a.tensor->device() != b.tensor->device()) return;
    const Addresses first = addresses_of(*a.tensor), second = addresses_of(*b.tensor);
    if (first.from < second.upto && second.from < first.upto)
      value_error(a.name, " and ", b.name, " must not overlap in memory, since ", a.name, " is written. Give ", b.name,
                  ".clone().");
  };
  for (const Argument* a = written.begin(); a != written.end(); ++a) {
    for (const Argument* b = a + 1; b != written.end(); ++b) check(*a, *b);
    for (const Argument& b : read) check(*a, b);
  }
}

// A contiguous tensor of one dimension and a given length (-1: any).
inline void check_vector(const Tensor& t, ScalarType type, int64_t length, const char* name) {
  check_dtype(t, type, name);
  if (t.dim() != 1 || (length >= 0 && t.size(0) != length))
    value_error(name, " must have shape (", (length >= 0 ? std::to_string(length) : std::string("n")), ",), got ",
                shape_text(t));
  if (!t.is_contiguous()) value_error(name, " must be contiguous");
}

inline bool is_channels_last(const Tensor& t) {
  if (t.dim() != 4) return false;
  int64_t expected = 1;
  for (const int64_t d : {1, 3, 2, 0}) {
    if (t.size(d) != 1 && t.stride(d) != expected) return false;
    expected *= t.size(d);
  }
  return true;
}

// A float32 tensor with the shape and the memory format of another.
inline void check_like(const Tensor& t, const Tensor& other, const char* name, const char* other_name) {
  check_dtype(t, ScalarType::Float, name);
  check_same_device(t, other, name, other_name);
  bool same = t.dim() == other.dim();
  for (int64_t d = 0; same && d < other.dim(); ++d) same = t.size(d) == other.size(d);
  if (!same) value_error(name, " must have the shape of ", other_name, ", ", shape_text(other), ", got ", shape_text(t));
  for (int64_t d = 0; d < other.dim(); ++d)
    if (other.size(d) > 1 && t.stride(d) != other.stride(d))
      value_error(name, " must have the memory format of ", other_name);
}

inline void check_rng(const Tensor& rng) { check_vector(rng, ScalarType::Long, 2, "rng"); }

template <class T>
const T* data_or_null(const std::optional<Tensor>& t) {
  return t.has_value() ? t->const_data_ptr<T>() : nullptr;
}

// The flag word of faults.h, or null where the caller passed none.
inline int32_t* fault_data(const std::optional<Tensor>& fault, const Tensor& like, const char* like_name) {
  if (!fault.has_value()) return nullptr;
  check_vector(*fault, ScalarType::Int, 1, "fault");
  check_same_device(*fault, like, "fault", like_name);
  return static_cast<int32_t*>(fault->mutable_data_ptr());
}

inline const RngState* rng_data(const Tensor& rng) { return reinterpret_cast<const RngState*>(rng.const_data_ptr()); }
inline RngState* rng_data_mutable(const Tensor& rng) { return reinterpret_cast<RngState*>(rng.mutable_data_ptr()); }

// ---- allocation ---------------------------------------------------------------------------------------------------------
// Not torch::stable::new_empty: that looks its op up by name, which costs a third of a draw.
inline Tensor new_strided(const Tensor& like, ScalarType type, std::initializer_list<int64_t> sizes,
                          std::initializer_list<int64_t> strides) {
  const int32_t dtype = torch::stable::detail::to<int32_t>(torch::stable::detail::from(type));
  int32_t device_type, device_index;
  AtenTensorHandle handle;
  STABLE_TORCH_ERROR_CODE_CHECK(aoti_torch_get_device_type(like.get(), &device_type));
  STABLE_TORCH_ERROR_CODE_CHECK(aoti_torch_get_device_index(like.get(), &device_index));
  STABLE_TORCH_ERROR_CODE_CHECK(aoti_torch_empty_strided(static_cast<int64_t>(sizes.size()), sizes.begin(), strides.begin(),
                                                         dtype, device_type, device_index, &handle));
  return Tensor(handle);
}

inline Tensor new_vector(const Tensor& like, ScalarType type, int64_t length) {
  return new_strided(like, type, {length}, {1});
}

}  // namespace cfol
