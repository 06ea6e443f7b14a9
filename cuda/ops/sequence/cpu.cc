// SequencePool on the CPU: each sequence is read once, row by row, into a run of sums (or maxima) that stays in the
// cache.
#include <algorithm>
#include <cmath>
#include <limits>
#include <type_traits>

#include "device/arrays.h"
#include "gen/sequence.h"

namespace ortops {
namespace {

constexpr int64_t kTile = 1024;    // sums that are kept at a time
constexpr int64_t kGrain = 16384;  // elements worth a thread's while

// The row as floats: in place where it holds such.
template <class T>
const float* widened(const T* row, int64_t count, float* buffer) {
  if constexpr (std::is_same_v<T, float>) {
    return row;
  } else {
    widen(row, buffer, count);
    return buffer;
  }
}

ORTOPS_CLONES void accumulate(const float* row, double* sums, int64_t count) {
  for (int64_t d = 0; d < count; ++d) sums[d] += row[d];
}

// A NaN stays, as in numpy.
ORTOPS_CLONES void take_larger(const float* row, float* y, int64_t count) {
  for (int64_t d = 0; d < count; ++d) y[d] = row[d] > y[d] || row[d] != row[d] ? row[d] : y[d];
}

// y[0..count) = the pooled columns of one sequence of S rows; x begins at its first column.
template <class T, class M>
void pool(const T* x, const M* mask, int64_t S, int64_t D, int64_t count, SequencePoolAttributes::Mode mode, float* y) {
  using Mode = SequencePoolAttributes::Mode;
  float buffer[kTile];
  int64_t kept = 0;
  if (mode == Mode::max) {
    std::fill_n(y, count, -std::numeric_limits<float>::infinity());
    for (int64_t s = 0; s < S; ++s) {
      if (mask[s] == M(0)) continue;
      ++kept;
      take_larger(widened(x + s * D, count, buffer), y, count);
    }
    if (kept == 0) std::fill_n(y, count, 0.0f);
    return;
  }
  double sums[kTile];
  std::fill_n(sums, count, 0.0);
  for (int64_t s = 0; s < S; ++s) {
    if (mask[s] == M(0)) continue;
    ++kept;
    accumulate(widened(x + s * D, count, buffer), sums, count);
    if (mode == Mode::first) break;
  }
  const double scale = std::max<int64_t>(kept, 1);
  for (int64_t d = 0; d < count; ++d) y[d] = static_cast<float>(sums[d] / scale);
}

}  // namespace

template <class T, class M>
void sequence_pool_cpu(const SequencePoolArgs<T, M>& a, Context& context) {
  const auto run = [&](int64_t first, int64_t last) {
    float pooled[kTile];
    for (int64_t b = first; b < last; ++b) {
      const auto each_tile = [&](auto f) {
        for (int64_t begin = 0; begin < a.D; begin += kTile) {
          const int64_t count = std::min(kTile, a.D - begin);
          pool(a.x + b * a.S * a.D + begin, a.mask + b * a.S, a.S, a.D, count, a.mode, pooled);
          f(begin, count);
        }
      };
      double squares = 0;
      const auto measure = [&](int64_t, int64_t count) {
        for (int64_t d = 0; d < count; ++d) squares += double(pooled[d]) * pooled[d];
      };
      const auto write = [&](int64_t begin, int64_t count) {
        const float length = a.normalize ? static_cast<float>(std::max(std::sqrt(squares), 1e-12)) : 1.0f;
        for (int64_t d = 0; d < count; ++d) pooled[d] /= length;
        narrow(pooled, a.y + b * a.D + begin, count);
      };
      if (a.normalize && a.D > kTile) {  // too long to be kept until its length is known: once more
        each_tile(measure);
        each_tile(write);
      } else {
        each_tile([&](int64_t begin, int64_t count) {
          if (a.normalize) measure(begin, count);
          write(begin, count);
        });
      }
    }
  };
  context.parallel_for(a.B, std::max<int64_t>(1, kGrain / std::max<int64_t>(1, a.S * a.D)), run);
}

}  // namespace ortops
