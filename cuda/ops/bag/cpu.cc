// EmbeddingBag and its gradients on the CPU.
//
// Forward, the bags are shared out among the threads, and the rows of each are summed in registers (rows.h).
//
// The table's gradient goes the other way: the positions are sorted by their row (by counting), and the rows of the
// table are shared out. Each is then summed in one place and in the order of the positions, whatever the number of
// threads.
#include "ops/bag/bags.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "device/arrays.h"
#include "device/index.h"
#include "gen/bag.h"
#include "ops/bag/rows.h"

namespace ortops {
namespace {

constexpr int64_t kGrain = 65536;  // elements worth a thread's while: some 10 microseconds

// total += d where `winner` is the position
template <class C>
ORTOPS_INLINE void add_won_of(const C* d, const int32_t* winner, int32_t position, C* total, int64_t count) {
  for (int64_t i = 0; i < count; ++i) total[i] += winner[i] == position ? d[i] : C(0);
}
ORTOPS_CLONES void add_won(const float* d, const int32_t* winner, int32_t position, float* total, int64_t count) {
  add_won_of(d, winner, position, total, count);
}
ORTOPS_CLONES void add_won(const double* d, const int32_t* winner, int32_t position, double* total, int64_t count) {
  add_won_of(d, winner, position, total, count);
}

template <class C>
ORTOPS_INLINE C dot_of(const C* a, const C* b, int64_t count) {
  constexpr int kLanes = 32;  // sums side by side, which a loop over them makes vectors of
  C lanes[kLanes] = {};
  int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes) {
    for (int j = 0; j < kLanes; ++j) lanes[j] += a[i + j] * b[i + j];
  }
  for (int j = 0; i < count; ++i, ++j) lanes[j] += a[i] * b[i];
  for (int step = kLanes / 2; step > 0; step /= 2) {
    for (int j = 0; j < step; ++j) lanes[j] += lanes[j + step];
  }
  return lanes[0];
}
ORTOPS_CLONES float dot(const float* a, const float* b, int64_t count) { return dot_of(a, b, count); }
ORTOPS_CLONES double dot(const double* a, const double* b, int64_t count) { return dot_of(a, b, count); }

template <class I>
ORTOPS_INLINE bool are_inside_of(const I* indices, int64_t count, int64_t rows) {
  int64_t outside = 0;
  for (int64_t i = 0; i < count; ++i) outside |= (indices[i] < -rows) | (indices[i] >= rows);
  return outside == 0;
}
ORTOPS_CLONES bool are_inside(const int64_t* indices, int64_t count, int64_t rows) {
  return are_inside_of(indices, count, rows);
}
ORTOPS_CLONES bool are_inside(const int32_t* indices, int64_t count, int64_t rows) {
  return are_inside_of(indices, count, rows);
}

template <class I>
void check_offsets(const Bags<I>& bags) {
  for (int64_t place = 0; bags.offsets && place < bags.offset_count; ++place) {
    if (bags.is_valid(place)) continue;
    const std::string before = place ? " after " + std::to_string(bags.offsets[place - 1]) : "";
    throw Error(valid_offset(place, bags.positions) + ", got " + std::to_string(bags.offsets[place]) + before);
  }
}

// The indices of a table, as rows of it.
template <class I>
struct Rows {
  const I* indices;
  int64_t rows;
  int64_t padding;

  int64_t operator[](int64_t position) const {
    const int64_t index = indices[position];
    if (index < -rows || index >= rows) throw_index_error("indices", index, rows);
    return index < 0 ? index + rows : index;
  }
  bool is_padding(int64_t row) const { return row == padding; }
  void check(int64_t begin, int64_t end) const {
    if (are_inside(indices + begin, end - begin, rows)) return;
    for (int64_t position = begin; position < end; ++position) (*this)[position];
  }

  // Fetches what is wanted of the row of a position that comes later, if there is one.
  template <class T>
  void fetch_ahead(int64_t position, int64_t end, const T* table, int64_t width, int64_t count) const {
    if (position >= end) return;
    const int64_t index = indices[position];
    if (index >= -rows && index < rows) fetch(table + (index < 0 ? index + rows : index) * width, count);
  }
};

// The rows of the positions, for which all indices have been checked.
template <class T, class I, bool kWeighted = false>
struct BagRows {
  const I* indices;
  int64_t count, padding;
  const T* table;
  int64_t width;
  int64_t last;
  const T* weights = nullptr;

  ORTOPS_INLINE const T* row(int64_t position) const {
    const int64_t index = indices[position], row = index < 0 ? index + count : index;
    return row == padding ? nullptr : table + row * width;
  }
  ORTOPS_INLINE Compute<T> factor(int64_t position) const {
    if constexpr (kWeighted) return to_compute(weights[position]);
    return 1;
  }
  int64_t kept(int64_t begin, int64_t end) const {
    if (padding < 0) return end - begin;
    int64_t kept = 0;
    for (int64_t position = begin; position < end; ++position) kept += row(position) != nullptr;
    return kept;
  }
};

// The maxima of some columns of a bag, and if asked for their positions counted from the bag's begin (-1: an empty bag,
// zeros).
template <bool kWinners, class T, class I>
void maximum(const BagRows<T, I>& rows, int64_t begin, int64_t end, int64_t count, Compute<T>* best,
             int32_t* winners = nullptr) {
  if (end - begin > std::numeric_limits<int32_t>::max()) throw Error("indices: a bag of more than 2147483647");
  int64_t first = begin;
  while (first < end && !rows.row(first)) ++first;
  if (first == end) {
    std::fill_n(best, count, Compute<T>(0));
    if (kWinners) std::fill_n(winners, count, -1);
    return;
  }
  find_maximum<kWinners, T>(rows, first, end, count, best, winners);
  const int32_t before = static_cast<int32_t>(first - begin);
  if (kWinners && before > 0) {
    for (int64_t i = 0; i < count; ++i) winners[i] += before;
  }
}

// What goes to the rows of the table, sorted by them.
template <class T>
struct SortedRows {
  const T* d_y;
  int64_t width;
  const int64_t* bags;
  const int64_t* positions;
  const T* weights;           // of positions, or null
  const Compute<T>* factors;  // of bags, or null
  int64_t last;

  ORTOPS_INLINE const T* row(int64_t i) const { return d_y + bags[i] * width; }
  ORTOPS_INLINE Compute<T> factor(int64_t i) const {
    return weights ? to_compute(weights[positions[i]]) : factors ? factors[bags[i]] : Compute<T>(1);
  }
};

// Where results are formed: in their place, if they are of the type that is computed in.
template <class T, class C = Compute<T>>
C* wide_results(T* narrow, C* wide) {
  if constexpr (std::is_same_v<T, C>) {
    return narrow;
  } else {
    return wide;
  }
}

template <class F>
void for_columns(int64_t width, F&& f) {
  for (int64_t begin = 0; begin < width; begin += kColumns) f(begin, std::min(kColumns, width - begin));
}

// How many of `count` items, which have `total` rows of `width` in all, are worth a thread's while.
int64_t grain(int64_t count, int64_t total, int64_t width) {
  return std::max<int64_t>(1, kGrain / (std::max<int64_t>(1, width) * (total / std::max<int64_t>(1, count) + 1)));
}

}  // namespace

template <class I, class T>
void embedding_bag_cpu(const EmbeddingBagArgs<I, T>& a, Context& context) {
  using C = Compute<T>;
  const Bags<I> bags = bags_of(a);
  const BagMode mode = bag_mode(a);
  const Rows<I> rows = {a.indices, a.V, padding_row(a)};
  check_offsets(bags);
  context.parallel_for(bags.count, grain(bags.count, bags.positions, a.D), [&](int64_t first, int64_t behind) {
    const int64_t last = bags.end(behind - 1);
    rows.check(bags.begin(first), last);
    for_columns(a.D, [&](int64_t column, int64_t count) {
      const BagRows<T, I> found = {a.indices, a.V, rows.padding, a.table + column, a.D, last};
      const BagRows<T, I, true> weighted = {a.indices, a.V, rows.padding, a.table + column, a.D, last, a.weights};
      C wide[kColumns];
      for (int64_t bag = first; bag < behind; ++bag) {
        const int64_t begin = bags.begin(bag), end = bags.end(bag);
        T* const y = a.y + bag * a.D + column;
        C* const results = wide_results(y, wide);
        if (mode == BagMode::max) {
          maximum<false>(found, begin, end, count, results);
        } else if (a.weights) {
          sum_rows<T>(weighted, begin, end, count, results);
        } else {
          sum_rows<T>(found, begin, end, count, results);
        }
        if (mode == BagMode::mean) {
          const C kept = C(found.kept(begin, end));
          for (int64_t i = 0; i < count && kept > 1; ++i) results[i] /= kept;
        }
        if constexpr (!std::is_same_v<T, C>) narrow(results, y, count);
      }
    });
  });
}

template <class I, class T>
void embedding_bag_gradient_cpu(const EmbeddingBagGradientArgs<I, T>& a, Context& context) {
  using C = Compute<T>;
  const Bags<I> bags = bags_of(a);
  const BagMode mode = bag_mode(a);
  const Rows<I> rows = {a.indices, a.V, padding_row(a)};
  check_offsets(bags);
  check_bags(bags, a.B);
  const auto allocate = [&](int64_t count, auto element) {
    return static_cast<decltype(element)*>(context.scratch(std::max<int64_t>(1, count) * sizeof(element)));
  };

  // The positions sorted by their row: those of row r are from starts[r] to starts[r + 1].
  int64_t* starts = allocate(a.V + 2, int64_t());
  int64_t* sorted = allocate(bags.positions, int64_t());
  int64_t* bag_of = allocate(bags.positions, int64_t());  // of those, in the same order
  C* factors = mode == BagMode::mean ? allocate(bags.count, C()) : nullptr;
  std::fill_n(starts, a.V + 2, 0);
  for (int64_t bag = 0; bag < bags.count; ++bag) {
    int64_t kept = 0;
    for (int64_t position = bags.begin(bag); position < bags.end(bag); ++position) {
      const int64_t row = rows[position];
      if (rows.is_padding(row)) continue;
      ++starts[row + 2];
      ++kept;
    }
    if (factors) factors[bag] = C(1) / C(std::max<int64_t>(1, kept));
  }
  const int64_t last = bags.count ? bags.end(bags.count - 1) : 0;
  for (int64_t position = last; position < bags.positions; ++position) rows[position];  // in no bag, but to be valid
  for (int64_t row = 2; row < a.V + 2; ++row) starts[row] += starts[row - 1];
  for (int64_t bag = 0; bag < bags.count; ++bag) {
    for (int64_t position = bags.begin(bag); position < bags.end(bag); ++position) {
      const int64_t row = rows[position];
      if (rows.is_padding(row)) continue;
      const int64_t place = starts[row + 1]++;
      sorted[place] = position;
      bag_of[place] = bag;
    }
  }

  int32_t* winners = nullptr;
  if (mode == BagMode::max) {
    winners = allocate(bags.count * a.D, int32_t());
    context.parallel_for(bags.count, grain(bags.count, bags.positions, a.D), [&](int64_t first, int64_t behind) {
      for_columns(a.D, [&](int64_t column, int64_t count) {
        const BagRows<T, I> found = {a.indices, a.V, rows.padding, a.table + column, a.D, bags.end(behind - 1)};
        C best[kColumns];
        for (int64_t bag = first; bag < behind; ++bag) {
          maximum<true>(found, bags.begin(bag), bags.end(bag), count, best, winners + bag * a.D + column);
        }
      });
    });
  }

  context.parallel_for(a.V, grain(a.V, last, a.D), [&](int64_t first, int64_t behind) {
    for_columns(a.D, [&](int64_t column, int64_t count) {
      const SortedRows<T> found = {a.d_y + column, a.D, bag_of, sorted, a.weights, factors, starts[behind]};
      C wide[kColumns], won[kColumns];
      for (int64_t row = first; row < behind; ++row) {
        T* const d_row = a.d_table + row * a.D + column;
        C* const totals = wide_results(d_row, wide);
        if (starts[row] == starts[row + 1]) {
          std::memset(d_row, 0, count * sizeof(T));
          continue;
        }
        if (winners) {
          std::fill_n(totals, count, C(0));
          for (int64_t i = starts[row]; i < starts[row + 1]; ++i) {
            const int64_t position = sorted[i], bag = bag_of[i];
            const int32_t place = static_cast<int32_t>(position - bags.begin(bag));
            widen(a.d_y + bag * a.D + column, won, count);
            add_won(won, winners + bag * a.D + column, place, totals, count);
          }
        } else {
          sum_rows<T>(found, starts[row], starts[row + 1], count, totals);
        }
        if constexpr (!std::is_same_v<T, C>) narrow(totals, d_row, count);
      }
    });
  });
}

template <class I, class T>
void embedding_bag_weights_gradient_cpu(const EmbeddingBagWeightsGradientArgs<I, T>& a, Context& context) {
  using C = Compute<T>;
  const Bags<I> bags = bags_of(a);
  const Rows<I> rows = {a.indices, a.V, padding_row(a)};
  check_offsets(bags);
  check_bags(bags, a.B);
  const int64_t last = bags.count ? bags.end(bags.count - 1) : 0;
  for (int64_t position = last; position < bags.positions; ++position) {
    rows[position];
    a.d_weights[position] = from_compute<T>(0);
  }
  context.parallel_for(bags.count, grain(bags.count, bags.positions, a.D), [&](int64_t first, int64_t behind) {
    C d[kColumns], values[kColumns];
    const int64_t fetched = bags.end(behind - 1);
    for (int64_t bag = first; bag < behind; ++bag) {
      int64_t held = -1;  // the columns of d_y that d holds
      for (int64_t position = bags.begin(bag); position < bags.end(bag); ++position) {
        rows.fetch_ahead(position + kAhead, fetched, a.table, a.D, std::min(a.D, kColumns));
        const int64_t row = rows[position];
        C sum = 0;
        if (!rows.is_padding(row)) {
          for_columns(a.D, [&](int64_t column, int64_t count) {
            if (held != column) widen(a.d_y + bag * a.D + column, d, count);
            held = column;
            widen(a.table + row * a.D + column, values, count);
            sum += dot(d, values, count);
          });
        }
        a.d_weights[position] = from_compute<T>(sum);
      }
    }
  });
}

}  // namespace ortops
