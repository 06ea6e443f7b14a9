// SelectTopK on the CPU. A row is read once: those of its elements that are better than the worst of the best k so far
// are put aside, and when room for them runs out the best k of those are kept. In a long row hardly any are better, and
// which blocks of a row have one is found by loops over vectors. Few long rows are cut into pieces, whose best k are
// selected from in turn. Rows that lie beside each other in memory (another axis than the last) are read side by side.
#include <algorithm>
#include <functional>
#include <vector>

#include "device/arrays.h"
#include "gen/topk.h"
#include "ops/topk/order.h"

namespace ortops {
namespace {

constexpr int64_t kChunk = 512;      // elements of a row that are looked at together
constexpr int64_t kBlock = 32;       // elements that are passed over together
constexpr int64_t kGrain = 16384;    // elements worth a thread's while
constexpr int64_t kPiece = 1 << 17;  // elements of a piece of a long row
constexpr int64_t kManyRows = 16;    // that are not cut
constexpr int64_t kLineBytes = 64;   // of rows side by side
constexpr int64_t kInserted = 16;    // a k up to which each of the best is put into its place
constexpr int64_t kRadix = 1024;     // elements from which on digits sort faster than comparisons
constexpr int kBits = 32;            // of an index beside its key

template <class V>
ORTOPS_INLINE void find_keys(const V* values, int64_t count, bool largest, KeyOf<V>* keys, KeyOf<V>* best) {
  for (int64_t i = 0; i < count; ++i) keys[i] = key_of(oriented(values[i], largest), largest);
  for (int64_t block = 0; block * kBlock < count; ++block) {
    KeyOf<V> most = 0;
    const int64_t end = std::min(kBlock, count - block * kBlock);
    for (int64_t i = 0; i < end; ++i) most = std::max(most, keys[block * kBlock + i]);
    best[block] = most;
  }
}

// The keys of so many values, and the best of each block of them.
ORTOPS_CLONES void keys_of(const float* values, int64_t count, bool largest, uint32_t* keys, uint32_t* best) {
  find_keys(values, count, largest, keys, best);
}
ORTOPS_CLONES void keys_of(const double* values, int64_t count, bool largest, uint64_t* keys, uint64_t* best) {
  find_keys(values, count, largest, keys, best);
}
ORTOPS_CLONES void keys_of(const int32_t* values, int64_t count, bool largest, uint32_t* keys, uint32_t* best) {
  find_keys(values, count, largest, keys, best);
}
ORTOPS_CLONES void keys_of(const int64_t* values, int64_t count, bool largest, uint64_t* keys, uint64_t* best) {
  find_keys(values, count, largest, keys, best);
}

// `count` elements `stride` apart, as what they are compared as: in place where they are that already.
template <class T>
const Compared<T>* gather(const T* x, int64_t count, int64_t stride, Compared<T>* buffer) {
  if (stride == 1) {
    if constexpr (std::is_same_v<T, Compared<T>>) {
      return x;
    } else if constexpr (is_float<T>) {
      widen(x, buffer, count);
    } else {
      std::copy_n(x, count, buffer);
    }
    return buffer;
  }
  for (int64_t i = 0; i < count; ++i) buffer[i] = compared(x[i * stride]);
  return buffer;
}

// The k best of the elements it is given, in the order of their indices.
template <class Key>
class Best {
 public:
  using P = Packed<Key>;

  // Begins with a row of so many elements.
  void begin(int64_t k, int64_t size) {
    k_ = k;
    room_ = std::min(size, k + std::max<int64_t>(k, 64));
    held_.clear();
    held_.reserve(room_);
    full_ = false;
  }

  void take(const Key* keys, const Key* best, int64_t count, int64_t first) {
    for (int64_t block = 0; block * kBlock < count; ++block) {
      if (full_ && best[block] <= worst_) continue;  // of equal keys the one before it is better
      const int64_t end = std::min(count, (block + 1) * kBlock);
      for (int64_t i = block * kBlock; i < end; ++i) {
        if (full_ && keys[i] <= worst_) continue;
        const P packed = pack(keys[i], static_cast<uint32_t>(first + i), kBits);
        if (k_ <= kInserted) {
          insert(packed);
        } else {
          if (static_cast<int64_t>(held_.size()) == room_) prune();
          held_.push_back(packed);
        }
      }
    }
  }

  void take(const P* packed, int64_t count) { held_.insert(held_.end(), packed, packed + count); }

  // The k best, unordered.
  std::vector<P>& finish() {
    if (static_cast<int64_t>(held_.size()) > k_) prune();
    return held_;
  }

 private:
  // Where k is small, what is held is in order, and never more than k.
  void insert(P packed) {
    if (full_) held_.pop_back();
    held_.insert(std::upper_bound(held_.begin(), held_.end(), packed, std::greater<>()), packed);
    full_ = static_cast<int64_t>(held_.size()) == k_;
    worst_ = static_cast<Key>(held_.back() >> kBits);
  }

  void prune() {
    std::nth_element(held_.begin(), held_.begin() + (k_ - 1), held_.end(), std::greater<>());
    held_.resize(k_);
    worst_ = static_cast<Key>(held_[k_ - 1] >> kBits);
    full_ = true;
  }

  int64_t k_ = 0, room_ = 0;
  std::vector<P> held_;
  Key worst_ = 0;
  bool full_ = false;
};

// Sorts by the bits from `begin` to `end`, the largest first; equal ones keep their order. Digits that all share are
// skipped.
template <class P>
void radix_sort(std::vector<P>& items, int begin, int end) {
  constexpr int kDigit = 11;
  std::vector<P> other(items.size());
  for (int shift = begin; shift < end; shift += kDigit) {
    const uint64_t mask = (uint64_t(1) << std::min(kDigit, end - shift)) - 1;
    const auto digit = [&](const P& item) { return mask - (uint64_t(item >> shift) & mask); };
    size_t places[(1 << kDigit) + 1] = {};
    for (const P& item : items) ++places[digit(item) + 1];
    if (places[digit(items[0]) + 1] == items.size()) continue;
    for (uint64_t d = 0; d < mask; ++d) places[d + 1] += places[d];
    for (const P& item : items) other[places[digit(item)]++] = item;
    items.swap(other);
  }
}

// Orders what was selected. Where the items came in the order of their indices, keys alone decide.
template <class P>
void order(std::vector<P>& items, bool sorted, bool in_order) {
  constexpr int kAll = 8 * sizeof(P) - (sizeof(P) == 16 ? kBits : 0);  // a wide key has 64 bits, 32 above it are free
  if (static_cast<int64_t>(items.size()) >= kRadix) {
    if (sorted) {
      radix_sort(items, in_order ? kBits : 0, kAll);
    } else if (!in_order) {
      radix_sort(items, 0, kBits);
    }
  } else if (sorted) {
    std::sort(items.begin(), items.end(), std::greater<>());
  } else {
    std::sort(items.begin(), items.end(), [](P a, P b) { return static_cast<uint32_t>(a) > static_cast<uint32_t>(b); });
  }
}

}  // namespace

template <class T>
void select_top_k_cpu(const SelectTopKArgs<T>& a, Context& context) {
  using V = Compared<T>;
  using Key = KeyOf<V>;
  const int64_t axis = a.axis < 0 ? a.axis + a.X.rank : a.axis;
  int64_t outer = 1, inner = 1;
  for (int64_t i = 0; i < axis; ++i) outer *= a.X[i];
  for (int64_t i = axis + 1; i < a.X.rank; ++i) inner *= a.X[i];
  const int64_t size = a.X[axis];
  const int64_t k = a.k ? *a.k : a.k_input.rank > 0 ? a.k_input[0] : size;
  if (size >> kBits != 0) {
    throw Error("x: expected at most 4294967295 elements along the axis, got " + std::to_string(size));
  }

  const int64_t width = std::min<int64_t>(inner, std::max<int64_t>(1, kLineBytes / sizeof(T)));  // rows side by side
  const int64_t groups = (inner + width - 1) / width;
  const int64_t piece = outer * inner < kManyRows ? std::max(kPiece, 8 * k) : size;
  const int64_t pieces = (size + piece - 1) / piece;

  // The rows from `row` on that lie side by side, the elements from `begin` to `end` of them.
  const auto select = [&](int64_t row, int64_t rows, int64_t begin, int64_t end, std::vector<Best<Key>>& best) {
    V buffer[kChunk];
    Key keys[kChunk], most[kChunk / kBlock];
    best.resize(rows);
    for (Best<Key>& one : best) one.begin(k, end - begin);
    const T* x = a.x + row / inner * inner * size + row % inner;
    const int64_t chunk = rows == 1 ? kChunk : kChunk / 2;
    for (int64_t at = begin; at < end; at += chunk) {
      const int64_t count = std::min(chunk, end - at);
      for (int64_t r = 0; r < rows; ++r) {
        keys_of(gather(x + at * inner + r, count, inner, buffer), count, a.largest, keys, most);
        best[r].take(keys, most, count, at);
      }
    }
  };
  const auto write = [&](int64_t row, std::vector<Packed<Key>>& chosen, bool in_order) {
    order(chosen, a.sorted, in_order);
    const T* x = a.x + row / inner * inner * size + row % inner;
    const int64_t to = row / inner * inner * k + row % inner;
    for (int64_t i = 0; i < k; ++i) {
      const int64_t index = index_of(chosen[i], kBits);
      a.values[to + i * inner] = x[index * inner];
      a.indices[to + i * inner] = index;
    }
  };

  const int64_t units = outer * groups;
  const auto rows_of = [&](int64_t unit, int64_t& row) {
    row = unit / groups * inner + unit % groups * width;
    return std::min(width, inner - unit % groups * width);
  };
  if (pieces <= 1) {
    context.parallel_for(units, std::max<int64_t>(1, kGrain / (size * width)), [&](int64_t begin, int64_t end) {
      std::vector<Best<Key>> best;
      for (int64_t unit = begin; unit < end; ++unit) {
        int64_t row;
        const int64_t rows = rows_of(unit, row);
        select(row, rows, 0, size, best);
        for (int64_t r = 0; r < rows; ++r) write(row + r, best[r].finish(), k == size);
      }
    });
    return;
  }
  std::vector<std::vector<Best<Key>>> parts(units * pieces);
  context.parallel_for(units * pieces, 1, [&](int64_t begin, int64_t end) {
    for (int64_t part = begin; part < end; ++part) {
      int64_t row;
      const int64_t rows = rows_of(part / pieces, row);
      const int64_t first = part % pieces * piece;
      select(row, rows, first, std::min(size, first + piece), parts[part]);
      for (auto& best : parts[part]) best.finish();
    }
  });
  context.parallel_for(outer * inner, 1, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      const int64_t column = row % inner, unit = row / inner * groups + column / width;
      Best<Key> merged;
      merged.begin(k, pieces * k);
      for (int64_t p = 0; p < pieces; ++p) {
        const auto& chosen = parts[unit * pieces + p][column % width].finish();
        merged.take(chosen.data(), chosen.size());
      }
      write(row, merged.finish(), false);
    }
  });
}

}  // namespace ortops
