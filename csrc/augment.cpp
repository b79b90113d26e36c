// cfol_fast::gather_augment and cfol_fast::augment_parameters: checks and registration.
#include "augment.h"

#include <array>

#include "tensor.h"

namespace cfol {
namespace {

ImageStore store_of(const Tensor& images, const std::optional<Tensor>& table, int64_t channels) {
  check_dtype(images, ScalarType::Byte, "images");
  if (!images.is_contiguous()) value_error("images must be contiguous");
  ImageStore store = {
      images.const_data_ptr<uint8_t>(), images.numel(), nullptr, images.dim() > 0 ? images.size(0) : 0, channels, 0, 0};
  if (table.has_value()) {
    if (images.dim() != 1) value_error("images must have shape (bytes,) with a table, got ", shape_text(images));
    check_dtype(*table, ScalarType::Long, "table");
    check_same_device(*table, images, "table", "images");
    if (table->dim() != 2 || table->size(1) != 3) value_error("table must have shape (N, 3), got ", shape_text(*table));
    if (!table->is_contiguous()) value_error("table must be contiguous");
    store.table = table->const_data_ptr<int64_t>();
    store.count = table->size(0);
  } else {
    if (images.dim() != 4) value_error("images must have shape (N, H, W, C) without a table, got ", shape_text(images));
    if (images.size(3) != channels) value_error("images must have ", channels, " channels, got ", shape_text(images));
    store.height = images.size(1);
    store.width = images.size(2);
    if (store.height < 1 || store.width < 1 || store.height > kMaxSide || store.width > kMaxSide)
      value_error("images must be 1 to ", kMaxSide, " pixels high and wide, got ", shape_text(images));
  }
  if (channels != 1 && channels != 3) value_error("images must have 1 or 3 channels, got ", channels);
  return store;
}

void check_range(double value, const char* name, double most) {
  if (!(value >= 0 && value <= most)) value_error(name, " must be in [0, ", most, "], got ", value);
}

AugmentRanges ranges_of(int64_t pad, bool crop, bool flip, double brightness, double contrast, double saturation,
                        double degrees) {
  if (pad < 0 || pad > kMaxFrame) value_error("pad must be in [0, ", kMaxFrame, "], got ", pad);
  check_range(brightness, "brightness", 1000);
  check_range(contrast, "contrast", 1000);
  check_range(saturation, "saturation", 1000);
  check_range(degrees, "degrees", 180);
  return {pad,
          crop,
          flip,
          static_cast<float>(brightness),
          static_cast<float>(contrast),
          static_cast<float>(saturation),
          static_cast<float>(degrees)};
}

Frame frame_of(const Tensor& idx, const Tensor& images, const ImageStore& store, int64_t height, int64_t width,
               bool bfloat16, bool channels_last) {
  check_vector(idx, ScalarType::Long, -1, "idx");
  check_same_device(idx, images, "idx", "images");
  if (height < 1 || width < 1 || height > kMaxFrame || width > kMaxFrame)
    value_error("size must be 1 to ", kMaxFrame, " pixels high and wide, got (", height, ", ", width, ")");
  if (idx.numel() > 0 && store.count == 0) value_error("images must not be empty: idx asks for ", idx.numel());
  return {idx.numel(), store.channels, height, width, bfloat16, channels_last};
}

AugmentPlan plan_of(AugmentRanges ranges, const std::optional<Tensor>& rng, const std::optional<Tensor>& given,
                    int64_t first, const Tensor& images, const ImageStore& store, const Frame& frame) {
  AugmentPlan plan = {ranges, nullptr, nullptr, first};
  if (first < 0) value_error("first must be at least 0, got ", first);
  if (given.has_value()) {
    check_dtype(*given, ScalarType::Float, "parameters");
    check_same_device(*given, images, "parameters", "images");
    if (given->dim() != 2 || given->size(0) != frame.batch || given->size(1) != 8 || !given->is_contiguous())
      value_error("parameters must be contiguous with shape (", frame.batch, ", 8), got ", shape_text(*given));
    plan.given = reinterpret_cast<const AugmentParameters*>(given->const_data_ptr<float>());
  } else if (rng.has_value()) {
    check_rng(*rng);
    check_same_device(*rng, images, "rng", "images");
    plan.rng = rng_data_mutable(*rng);
    const int64_t high = store.height + 2 * ranges.pad, wide = store.width + 2 * ranges.pad;
    if (ranges.crop && store.table == nullptr && (high < frame.height || wide < frame.width))
      value_error("size must fit into the padded images, ", high, " x ", wide, ", got (", frame.height, ", ", frame.width,
                  "): choose a smaller size or a larger pad");
  }
  return plan;
}

// On the CPU every index, table row and given parameter is checked before anything is written.
void check_values(const ImageStore& store, const int64_t* idx, const AugmentPlan& plan, const Frame& frame) {
  for (int64_t i = 0; i < frame.batch; ++i) {
    int32_t bad = 0;
    if (idx[i] < 0 || idx[i] >= store.count)
      value_error("idx must be in [0, ", store.count, "), got ", idx[i], " at position ", i);
    locate(store, idx[i], &bad);
    const int64_t* row = store.table + 3 * idx[i];
    if (bad)
      value_error("table row ", idx[i], " must lie in the ", store.size, " bytes of images, got (offset, height, width) = (",
                  row[0], ", ", row[1], ", ", row[2], ")");
    if (plan.given != nullptr && !is_sound(plan.given[i]))
      value_error("parameters of example ", i, " must be finite, factors at least 0, the angle within 360 degrees");
  }
}

template <class Device>
Tensor gather_augment(const Tensor& images, std::optional<Tensor> table, const Tensor& idx, std::optional<Tensor> rng,
                      std::optional<Tensor> parameters, int64_t channels, int64_t height, int64_t width, int64_t pad,
                      bool crop, bool flip, double brightness, double contrast, double saturation, double degrees,
                      int64_t first, bool bfloat16, bool channels_last, std::optional<Tensor> fault) {
  const ImageStore store = store_of(images, table, channels);
  const Frame frame = frame_of(idx, images, store, height, width, bfloat16, channels_last);
  const AugmentRanges ranges = ranges_of(pad, crop, flip, brightness, contrast, saturation, degrees);
  const AugmentPlan plan = plan_of(ranges, rng, parameters, first, images, store, frame);
  check_apart({{"rng", rng}, {"fault", fault}},
              {{"images", images}, {"table", table}, {"idx", idx}, {"parameters", parameters}});
  const int64_t* indices = idx.const_data_ptr<int64_t>();
  if constexpr (!Device::kCuda) check_values(store, indices, plan, frame);
  const std::array<int64_t, 4> shape = {frame.batch, channels, height, width};
  using torch::headeronly::MemoryFormat;
  Tensor out = torch::stable::empty({shape.data(), shape.size()}, bfloat16 ? ScalarType::BFloat16 : ScalarType::Float,
                                    std::nullopt, images.device(), std::nullopt,
                                    channels_last ? MemoryFormat::ChannelsLast : MemoryFormat::Contiguous);
  const Device device(images);
  CFOL_RUN(Device, device, gather_augment, store, indices, plan, frame, out.mutable_data_ptr(),
           fault_data(fault, images, "images"));
  return out;
}

template <class Device>
Tensor augment_parameters(const Tensor& images, std::optional<Tensor> table, const Tensor& idx, const Tensor& rng,
                          int64_t channels, int64_t height, int64_t width, int64_t pad, bool crop, bool flip,
                          double brightness, double contrast, double saturation, double degrees, int64_t first,
                          std::optional<Tensor> fault) {
  const ImageStore store = store_of(images, table, channels);
  const Frame frame = frame_of(idx, images, store, height, width, false, false);
  const AugmentRanges ranges = ranges_of(pad, crop, flip, brightness, contrast, saturation, degrees);
  const AugmentPlan plan = plan_of(ranges, rng, std::nullopt, first, images, store, frame);
  check_apart({{"fault", fault}}, {{"images", images}, {"table", table}, {"idx", idx}, {"rng", rng}});
  const int64_t* indices = idx.const_data_ptr<int64_t>();
  if constexpr (!Device::kCuda) check_values(store, indices, plan, frame);
  const std::array<int64_t, 2> shape = {frame.batch, 8};
  Tensor out = torch::stable::new_empty(images, {shape.data(), shape.size()}, ScalarType::Float);
  const Device device(images);
  CFOL_RUN(Device, device, augment_parameters, store, indices, plan, frame,
           reinterpret_cast<AugmentParameters*>(out.mutable_data_ptr()), fault_data(fault, images, "images"));
  return out;
}

}  // namespace

CFOL_REGISTER(gather_augment)
CFOL_REGISTER(augment_parameters)

}  // namespace cfol
