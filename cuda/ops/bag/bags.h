// Which indices are in which bag; what the kernels on the CPU and on CUDA have in common.
#pragma once

#include <string>

#include "core/shapes.h"
#include "device/types.h"

namespace ortops {

enum class BagMode { sum, mean, max };

template <class I>
struct Bags {
  const I* offsets;  // where each bag begins; null: each has `length` indices
  int64_t offset_count;
  int64_t count;      // of bags
  int64_t positions;  // of indices
  int64_t length;

  // On CUDA offsets may be anything: what they give is kept inside of the indices.
  ORTOPS_HOST_DEVICE int64_t offset(int64_t bag) const {
    if (bag >= offset_count) return positions;
    const int64_t value = offsets[bag];
    return value < 0 ? 0 : value > positions ? positions : value;
  }
  ORTOPS_HOST_DEVICE int64_t begin(int64_t bag) const { return offsets ? offset(bag) : bag * length; }
  ORTOPS_HOST_DEVICE int64_t end(int64_t bag) const { return offsets ? offset(bag + 1) : (bag + 1) * length; }

  // Whether the offset at that place is a valid one.
  ORTOPS_HOST_DEVICE bool is_valid(int64_t place) const {
    const int64_t value = offsets[place];
    return place == 0 ? value == 0 : value >= offsets[place - 1] && value <= positions;
  }

  // The bag of a position, -1: none.
  ORTOPS_HOST_DEVICE int64_t of(int64_t position) const {
    if (!offsets) {
      return position >> 32 == 0 && length >> 32 == 0 ? uint32_t(position) / uint32_t(length) : position / length;
    }
    int64_t low = 0, high = offset_count;  // the first offset that is greater
    while (low < high) {
      const int64_t middle = low + (high - low) / 2;
      if (offsets[middle] <= position) {
        low = middle + 1;
      } else {
        high = middle;
      }
    }
    return low <= count ? low - 1 : -1;
  }
};

template <class Args>
auto bags_of(const Args& a) {
  const int64_t count = shapes::bags(a.S, a.offsets ? a.O : -1, a)[0];
  const bool matrix = a.S.rank == 2;
  return Bags<std::decay_t<decltype(*a.indices)>>{a.offsets, a.offsets ? a.O : 0, count, a.S.size(),
                                                  matrix ? a.S[1] : 0};
}

// The row that is left out; -1: none.
template <class Args>
int64_t padding_row(const Args& a) {
  if (!a.padding_idx) return -1;
  const int64_t row = *a.padding_idx;
  if (row < -a.V || row >= a.V) {
    throw Error("attribute padding_idx: expected an index of the table, from " + std::to_string(-a.V) + " to " +
                std::to_string(a.V - 1) + ", got " + std::to_string(row));
  }
  return row < 0 ? row + a.V : row;
}

template <class Args>
BagMode bag_mode(const Args& a) {
  using Mode = typename Args::Mode;
  const BagMode mode = a.mode == Mode::sum ? BagMode::sum : a.mode == Mode::mean ? BagMode::mean : BagMode::max;
  if (a.weights && mode != BagMode::sum) {
    throw Error(std::string("weights: expected none, as only the mode \"sum\" weighs its rows, got mode \"") +
                (mode == BagMode::mean ? "mean" : "max") + "\"");
  }
  return mode;
}

template <class I>
void check_bags(const Bags<I>& bags, int64_t d_y_rows) {
  if (d_y_rows != bags.count) {
    throw Error("d_y: expected a row for each of the " + std::to_string(bags.count) + " bags, got " +
                std::to_string(d_y_rows));
  }
}

inline std::string valid_offset(int64_t place, int64_t positions) {
  const std::string expected =
      place == 0 ? "0" : "a value from the one before it to " + std::to_string(positions) + ", the number of indices,";
  return "offsets: expected " + expected + " at position " + std::to_string(place);
}

}  // namespace ortops
