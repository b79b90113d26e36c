// Preloaded: torch counts as many devices as a test sets. Fake tensors never launch anything on them.
static int count = 0;
extern "C" void fake_cuda_set_count(int n) { count = n; }
namespace c10::cuda {
signed char device_count() noexcept { return static_cast<signed char>(count); }
}  // namespace c10::cuda
