#include "index_ring.h"

#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>

#include <stdexcept>
#include <string>

namespace cfol {

IndexRing::IndexRing(const int64_t* rows, int64_t slots, int64_t width) : rows_(rows), width_(width), counts_(slots) {}

int64_t IndexRing::reserve() {
  const std::lock_guard lock(mutex_);
  if (reserved_ != ready_) throw std::logic_error("index ring: reserve() twice without commit()");
  if (finished_ || closed_) throw std::logic_error("index ring: reserve() after the end");
  if (reserved_ - freed_ == slots()) return -1;
  return reserved_++ % slots();
}

void IndexRing::commit(int64_t count) {
  {
    const std::lock_guard lock(mutex_);
    if (reserved_ == ready_) throw std::logic_error("index ring: commit() without reserve()");
    if (count < 1 || count > width_) {
      --reserved_;  // the row goes back, so that the caller may go on after the error
      throw std::invalid_argument("a batch must have 1.." + std::to_string(width_) + " indices, got " +
                                  std::to_string(count));
    }
    counts_[ready_++ % slots()] = count;
  }
  committed_.notify_one();
}

void IndexRing::finish() {
  {
    const std::lock_guard lock(mutex_);
    finished_ = true;
  }
  committed_.notify_all();
}

void IndexRing::close() {
  {
    const std::lock_guard lock(mutex_);
    closed_ = true;
  }
  committed_.notify_all();
}

std::optional<IndexRing::Taken> IndexRing::take() {
  std::unique_lock lock(mutex_);
  freed_ = taken_;
  committed_.wait(lock, [this] { return closed_ || ready_ > taken_ || finished_; });
  if (closed_ || ready_ == taken_) return std::nullopt;
  const int64_t slot = taken_++ % slots();
  return Taken{slot, counts_[slot]};
}

int64_t IndexRing::find_outside(int64_t slot, int64_t limit) const {
  int64_t count = 0;
  {
    const std::lock_guard lock(mutex_);
    if (slot < 0 || slot >= slots()) throw std::out_of_range("index ring: no slot " + std::to_string(slot));
    count = counts_[slot];
  }
  const int64_t* row = rows_ + slot * width_;
  for (int64_t i = 0; i < count; ++i)
    if (row[i] < 0 || row[i] >= limit) return i;
  return -1;
}

int64_t IndexRing::waiting() const {
  const std::lock_guard lock(mutex_);
  return ready_ - taken_;
}

}  // namespace cfol

void bind_index_ring(pybind11::module_& m) {
  namespace py = pybind11;
  using cfol::IndexRing;
  using Rows = py::array_t<int64_t, py::array::c_style>;

  // Python's lock is released while take() waits and while a row is checked, so that the trainer goes on.
  py::class_<IndexRing>(m, "IndexRing", "Batches of indices between one producer and one consumer, first in first out.")
      .def(py::init([](const Rows& rows) {
             if (rows.ndim() != 2 || rows.shape(0) < 1 || rows.shape(1) < 1)
               throw std::invalid_argument(
                   "rows must be a C-contiguous int64 array (slots, batch) with at least one element");
             return new IndexRing(rows.data(), rows.shape(0), rows.shape(1));
           }),
           // noconvert: a converted copy would not be the memory that the caller fills.
           py::arg("rows").noconvert(), py::keep_alive<1, 2>())
      .def("reserve", &IndexRing::reserve, "The row to fill next, or -1 when every row is in use.")
      .def("commit", &IndexRing::commit, py::arg("count"), "The reserved row holds `count` indices.")
      .def("finish", &IndexRing::finish, "No more batches will come.")
      .def("close", &IndexRing::close, "Wakes a waiting consumer at once.")
      .def(
          "take",
          [](IndexRing& ring) -> py::object {
            std::optional<IndexRing::Taken> taken;
            {
              const py::gil_scoped_release unlocked;
              taken = ring.take();
            }
            return taken ? py::object(py::make_tuple(taken->slot, taken->count)) : py::object(py::none());
          },
          "Frees the row taken before and waits for the next: (slot, count), or None at the end.")
      .def("find_outside", &IndexRing::find_outside, py::arg("slot"), py::arg("limit"),
           py::call_guard<py::gil_scoped_release>(), "The position of the first index of the row outside 0..limit-1, or -1.")
      .def_property_readonly("waiting", &IndexRing::waiting, "Batches committed and not yet taken.")
      .def_property_readonly("slots", &IndexRing::slots)
      .def_property_readonly("width", &IndexRing::width);
}
