// The index ring: batches of data set indices on their way from the sampler (the trainer's thread) to a loader's thread.
//
// One producer, one consumer, first in first out. The memory is the caller's (pinned, when the indices come from a GPU): the
// ring only says which row is filled and which is read next. Only the consumer waits.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <optional>
#include <vector>

namespace cfol {

class IndexRing {
 public:
  struct Taken {
    int64_t slot;
    int64_t count;
  };

  // rows: `slots` rows of `width` indices; it must outlive the ring.
  IndexRing(const int64_t* rows, int64_t slots, int64_t width);

  // Producer. The row to fill next; -1 when all rows are still in use (more batches in flight than the ring was made for).
  int64_t reserve();
  // Producer. The reserved row now holds `count` indices (or will, once the device has copied them).
  void commit(int64_t count);
  // Producer. No more batches will come: the consumer gets those that are there, then nothing.
  void finish();
  // Either. Ends at once: a waiting consumer wakes up and is told that nothing more comes.
  void close();

  // Consumer. Frees the row taken before, then waits for the next one; nothing at the end.
  std::optional<Taken> take();
  // Consumer. The position of the first index of a taken row that is not in [0, limit), or -1.
  int64_t find_outside(int64_t slot, int64_t limit) const;

  int64_t waiting() const;
  int64_t slots() const { return static_cast<int64_t>(counts_.size()); }
  int64_t width() const { return width_; }

 private:
  const int64_t* rows_;
  int64_t width_;
  std::vector<int64_t> counts_;
  mutable std::mutex mutex_;
  std::condition_variable committed_;
  // Batches since the start, so that slot = number % slots: reserved >= committed >= taken >= freed.
  int64_t reserved_ = 0, ready_ = 0, taken_ = 0, freed_ = 0;
  bool finished_ = false, closed_ = false;
};

}  // namespace cfol
