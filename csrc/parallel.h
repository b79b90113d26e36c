// The CPU kernels' loop: torch's thread pool in the extension, two plain threads in the small programs that the sanitizers
// run.
#pragma once

#include <cstdint>

#if defined(CFOL_STANDALONE)
#include <thread>
#else
#include <torch/csrc/stable/ops.h>
#endif

namespace cfol {

// Calls body(begin, end) on disjoint ranges that cover [0, n); a range has at least `grain` elements where n allows it.
template <class Body>
void parallel_for(int64_t n, int64_t grain, const Body& body) {
  if (n <= 0) return;
  if (n <= grain) return body(int64_t{0}, n);
#if defined(CFOL_STANDALONE)
  const int64_t middle = n / 2;
  std::thread other([&] { body(middle, n); });
  body(int64_t{0}, middle);
  other.join();
#else
  torch::stable::parallel_for(0, n, grain, body);
#endif
}

}  // namespace cfol
