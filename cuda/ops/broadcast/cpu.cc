// BroadcastTo and SumToSize on the CPU: whole runs at a time, which are copied, filled, or added up.
#include <algorithm>
#include <cstring>
#include <vector>

#include "device/arrays.h"
#include "gen/broadcast.h"
#include "ops/broadcast/plan.h"

namespace ortops {
namespace {

constexpr int64_t kGrain = 32768;  // elements worth a thread's while
constexpr int64_t kPieces = 8;     // that one sum is divided into at most
constexpr int64_t kChunk = 512;    // elements that are added at a time
constexpr int64_t kLanes = 16;     // sums within a run
constexpr int64_t kColumns =
    2048;                 // sums that are kept at a time: with those of a few rows they fit in the first cache
constexpr int kFew = 64;  // rows: their sums are added to those of all, which would round more of each

// As many sums side by side as are exact and fast: one after the other is neither.
template <class T>
ORTOPS_INLINE T sum_lanes(const T* x, int64_t count) {
  T lanes[kLanes] = {};
  int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes) {
    for (int64_t lane = 0; lane < kLanes; ++lane) lanes[lane] += x[i + lane];
  }
  for (int64_t lane = 0; i < count; ++i, ++lane) lanes[lane] += x[i];
  for (int64_t half = kLanes / 2; half > 0; half /= 2) {
    for (int64_t lane = 0; lane < half; ++lane) lanes[lane] += lanes[lane + half];
  }
  return lanes[0];
}
ORTOPS_CLONES float sum_chunk(const float* x, int64_t count) { return sum_lanes(x, count); }
ORTOPS_CLONES double sum_chunk(const double* x, int64_t count) { return sum_lanes(x, count); }

template <class T>
Compute<T> sum_run(const T* x, int64_t count) {
  Compute<T> sum = 0, wide[kChunk];
  for (int64_t at = 0; at < count; at += kChunk) {
    const int64_t n = std::min(kChunk, count - at);
    if constexpr (std::is_same_v<T, Compute<T>>) {
      sum += sum_chunk(x + at, n);
    } else {
      widen(x + at, wide, n);
      sum += sum_chunk(wide, n);
    }
  }
  return sum;
}

// Few long sums are divided into pieces, by what there is to add up and not by how many threads there are.
int64_t pieces_of(int64_t sums, int64_t elements) {
  return std::clamp<int64_t>(std::min(kPieces / sums, elements / kGrain), 1, kPieces);
}

template <class T>
void sum_rows(const T* x, T* y, const Sums& s, Context& context) {
  const int64_t length = s.runs * s.inner, pieces = pieces_of(s.count, s.count * length);
  std::vector<Compute<T>> partial(pieces > 1 ? s.count * pieces : 0);
  const auto add_up = [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const int64_t sum = i / pieces, piece = i % pieces;
      const int64_t first = length * piece / pieces, last = length * (piece + 1) / pieces;
      Compute<T> total = 0;
      for (int64_t at = first; at < last;) {
        const int64_t run = at / s.inner, skip = at % s.inner, n = std::min(s.inner - skip, last - at);
        total += sum_run(x + s.sum(sum) + s.run(run) + skip, n);
        at += n;
      }
      if (pieces > 1) {
        partial[i] = total;
      } else {
        y[sum] = from_compute<T>(total);
      }
    }
  };
  context.parallel_for(s.count * pieces, std::max<int64_t>(1, kGrain * pieces / length), add_up);
  for (int64_t sum = 0; pieces > 1 && sum < s.count; ++sum) {
    y[sum] = from_compute<T>(sum_chunk(partial.data() + sum * pieces, pieces));
  }
}

// Rows are added one by one to a row of sums; short ones, that lie side by side, many at a time.
template <class T>
void sum_columns(const T* x, T* y, const Sums& s, Context& context) {
  using C = Compute<T>;
  const int64_t width = s.inner, together = std::clamp<int64_t>(kColumns / width, 1, s.run.sizes[s.run.rank - 1]);
  const int64_t side_by_side = s.run.sizes[s.run.rank - 1];  // rows
  const int64_t chunks = (width + kColumns - 1) / kColumns;
  const int64_t pieces = pieces_of(s.count * chunks, s.count * s.runs * width);
  std::vector<C> partial(pieces > 1 ? s.count * pieces * width : 0);
  const auto add_up = [&](int64_t begin, int64_t end) {
    std::vector<C> sums(kColumns), few(kColumns);  // of all rows, and of those since the last time
    for (int64_t i = begin; i < end; ++i) {
      const int64_t chunk = i % chunks, piece = i / chunks % pieces, sum = i / chunks / pieces;
      const int64_t column = chunk * kColumns, columns = std::min(kColumns, width - column);
      const int64_t last = s.runs * (piece + 1) / pieces;
      const T* from = x + s.sum(sum) + column;
      const int64_t used = together * columns;
      std::fill_n(sums.begin(), used, C(0));
      std::fill_n(few.begin(), used, C(0));
      int added = 0;
      for (int64_t run = s.runs * piece / pieces; run < last;) {
        const int64_t rows = std::min({together, side_by_side - run % side_by_side, last - run});
        add(few.data(), from + s.run(run), rows * columns);
        run += rows;
        if (++added == kFew || run == last) {
          add(sums.data(), few.data(), used);
          std::fill_n(few.begin(), used, C(0));
          added = 0;
        }
      }
      for (int64_t rows = together; rows > 1;) {
        const int64_t half = (rows + 1) / 2;
        add(sums.data(), sums.data() + half * columns, (rows - half) * columns);
        rows = half;
      }
      if (pieces > 1) {
        std::copy_n(sums.begin(), columns, partial.begin() + (sum * pieces + piece) * width + column);
      } else {
        narrow(sums.data(), y + sum * width + column, columns);
      }
    }
  };
  const int64_t tasks = s.count * pieces * chunks;
  context.parallel_for(tasks, std::max<int64_t>(1, kGrain * tasks / (s.count * s.runs * width)), add_up);
  for (int64_t sum = 0; pieces > 1 && sum < s.count; ++sum) {
    C* total = partial.data() + sum * pieces * width;
    for (int64_t piece = 1; piece < pieces; ++piece) add(total, total + piece * width, width);
    narrow(total, y + sum * width, width);
  }
}

}  // namespace

template <class T>
void broadcast_to_cpu(const BroadcastToArgs<T>& a, Context& context) {
  Walk rows = repeated(a.X, a.shape);
  int64_t size = 1;
  for (int axis = 0; axis < rows.rank; ++axis) size *= rows.sizes[axis];
  const int64_t inner = rows.rank ? rows.sizes[rows.rank - 1] : 1;
  const bool copies = rows.rank && rows.strides[rows.rank - 1] != 0;
  if (rows.rank) --rows.rank;
  const auto repeat = [&](int64_t begin, int64_t end) {  // of elements; a piece may begin within a row
    for (int64_t at = begin; at < end;) {
      const int64_t row = at / inner, first = at % inner, n = std::min(inner - first, end - at);
      const T* from = a.x + rows(row);
      if (copies) {
        std::memcpy(a.y + at, from + first, n * sizeof(T));
      } else {
        std::fill_n(a.y + at, n, *from);
      }
      at += n;
    }
  };
  context.parallel_for(size, kGrain, repeat);
}

template <class T>
void sum_to_size_cpu(const SumToSizeArgs<T>& a, Context& context) {
  if (a.X.size() == 0) {
    std::fill_n(a.y, a.L.size(), from_compute<T>(0));
    return;
  }
  const Sums s = sums(a.X, a.L);
  if (s.columns && s.runs == 1) {
    std::memcpy(a.y, a.x, a.X.size() * sizeof(T));
    return;
  }
  if (s.columns) {
    sum_columns(a.x, a.y, s, context);
  } else {
    sum_rows(a.x, a.y, s, context);
  }
}

}  // namespace ortops
