// The k best elements of a row, found by a team of threads: a warp or a block; on the host, in a test, a few threads.
//
// The row is read once, tile by tile, each into registers. A tile's elements fall into groups (a thread's, or a vector
// of a thread's), and the k-th best of the groups' best elements is a bound that at least k elements reach; of a row in
// no particular order few more than k do. Those are put into shared memory, in any order, for what comes after orders
// them by value and index, which no two share. So the result depends on nothing but the row. Of later tiles only groups
// are looked at whose best is better than the bound; where many are, the bound is raised.
//
// Where too many reach the bound (equal values, orders that defy the groups), the digits of the k-th best are found by
// histograms, index included, from the highest down until few enough are left.
//
// A Team has `thread` and `threads`, sync(), any(bool) (a barrier too), extremes(least&, most&) and sum(int) (of
// all; through memory that is zero before, and after the next barrier), add(int*, int) and load(int*) (atomic),
// count(int*) (adds 1, of many threads at once), find(histogram, wanted, above), parts(count) and sum_parts(). A Row
// has `n` elements, at(i) (oriented); of the tile that it holds begin() and end(), best(group) (NaN if there is one),
// element(group, i) and index(group, i), which is outside of the row for what fills the tile up.
#pragma once

#include "ops/topk/order.h"

namespace ortops {

constexpr int kDigitBits = 8;
constexpr int kDigits = 1 << kDigitBits;
constexpr int kFewRounds = 16;   // up to which k a warp takes one lane's best after the other
constexpr int kRankLimit = 256;  // up to so many are ordered by counting for each those that are better: no barriers

// A team's shared memory.
template <class Key>
struct Desk {
  int* histogram;        // kDigits
  Packed<Key>* last;     // the k-th best
  uint64_t* result;      // two numbers that a team makes together, zero otherwise
  int* held;             // how many entries there are
  Packed<Key>* entries;  // capacity of them, a power of 2
  int capacity;

  static constexpr size_t bytes(int capacity) { return kDigits * sizeof(int) + 48 + capacity * sizeof(Packed<Key>); }
  ORTOPS_HOST_DEVICE Desk(char* memory, int capacity)
      : histogram(reinterpret_cast<int*>(memory)),
        last(reinterpret_cast<Packed<Key>*>(memory + kDigits * sizeof(int))),
        result(reinterpret_cast<uint64_t*>(last) + 2),
        held(reinterpret_cast<int*>(result + 2)),
        entries(last + 48 / sizeof(Packed<Key>)),
        capacity(capacity) {}
};

namespace detail {

// Sorts by the bits in `mask`, the largest first. `count` is a power of 2.
template <class Team, class P>
ORTOPS_HOST_DEVICE void bitonic_sort(Team& team, P* entries, int count, P mask) {
  for (int size = 2; size <= count; size *= 2) {
    for (int stride = size / 2; stride > 0; stride /= 2) {
      for (int i = team.thread; i < count / 2; i += team.threads) {
        const int low = 2 * i - (i & (stride - 1));
        const P a = entries[low], b = entries[low + stride];
        const bool descending = (low & size) == 0;
        if (((a & mask) < (b & mask)) == descending) {
          entries[low] = b;
          entries[low + stride] = a;
        }
      }
      team.sync();
    }
  }
}

template <class U>
ORTOPS_HOST_DEVICE U min_of(U a, U b) {
  return b < a ? b : a;
}
template <class U>
ORTOPS_HOST_DEVICE U max_of(U a, U b) {
  return b > a ? b : a;
}

ORTOPS_HOST_DEVICE int round_up_to_power(int value) {
  int power = 1;
  while (power < value) power *= 2;
  return power;
}

// How many bits the number has, without leading zeros.
template <class U>
ORTOPS_HOST_DEVICE int bits_of(U number) {
#ifdef __CUDA_ARCH__
  return sizeof(U) == 8 ? 64 - __clzll(static_cast<long long>(number)) : 32 - __clz(static_cast<int>(number));
#else
  int bits = 0;
  for (; number != 0; number >>= 1) ++bits;
  return bits;
#endif
}

// A number that at least k of those reach that for_each(f) calls f with, in all threads together; and if no more are
// equal to it than that allows, at most `enough`. All are from `low` to `high`.
template <class Team, class U, class ForEach>
ORTOPS_HOST_DEVICE U bound_of(Team& team, int* histogram, U low, U high, int k, int enough, ForEach&& for_each) {
  int above = 0;
  for (;;) {
    const int width = bits_of(U(high - low));
    const int shift = width > kDigitBits ? width - kDigitBits : 0;
    for (int i = team.thread; i < kDigits; i += team.threads) histogram[i] = 0;
    team.sync();
    for_each([&](U number) {
      if (number >= low && number <= high) team.add(&histogram[static_cast<int>(U(number - low) >> shift)], 1);
    });
    team.sync();
    const int digit = team.find(histogram, k - above, above);
    const int same = histogram[digit];
    team.sync();  // all have read it
    low += U(digit) << shift;
    high = low + min_of(U(high - low), U((U(1) << shift) - 1));
    if (shift == 0 || above + same <= enough) return low;
  }
}

// Calls emit(place, index) for the k best of the entries: in their order, or in that of their indices.
template <class Team, class Key, class Emit>
ORTOPS_HOST_DEVICE void emit_best(Team& team, Desk<Key>& desk, int count, int k, int bits, bool sorted, Emit&& emit) {
  using P = Packed<Key>;
  P* entries = desk.entries;
  const P index_mask = (P(1) << bits) - 1;
  if (count <= kRankLimit) {
    // Several threads for each entry, where there are enough.
    const int parts = team.parts(count), part = team.thread % parts, step = team.threads / parts;
    const auto rank = [&](auto&& is_before, auto&& use) {
      for (int first = 0; first < count; first += step) {
        const int i = first + team.thread / parts;
        const P mine = i < count ? entries[i] : 0;
        int before = 0;
        for (int j = part; j < count; j += parts) before += is_before(entries[j], mine);
        before = team.sum_parts(before, parts);
        if (part == 0 && i < count) use(before, mine);
      }
    };
    rank([](P other, P mine) { return other > mine; },
         [&](int better, P mine) {
           if (sorted && better < k) emit(better, index_of(mine, bits));
           if (!sorted && better == k - 1) *desk.last = mine;
         });
    if (sorted) return;
    team.sync();
    const P bound = *desk.last;
    rank([&](P other, P mine) { return other >= bound && (other & index_mask) > (mine & index_mask); },
         [&](int before, P mine) {
           if (mine >= bound) emit(before, index_of(mine, bits));
         });
    return;
  }
  const int power = round_up_to_power(count);
  for (int i = count + team.thread; i < power; i += team.threads) entries[i] = 0;  // none is worse
  team.sync();
  bitonic_sort(team, entries, power, ~P(0));
  if (!sorted) {
    const int chosen = round_up_to_power(k);
    for (int i = k + team.thread; i < chosen; i += team.threads) entries[i] = 0;
    team.sync();
    bitonic_sort(team, entries, chosen, index_mask);
  }
  for (int i = team.thread; i < k; i += team.threads) emit(i, index_of(entries[i], bits));
}

// A bound in packed form that at least k elements reach, and at most the desk's capacity. Of it the bits from `shift`
// up are known to be `prefix`, and `better` elements to have more there.
template <class Team, class Row, class Key>
ORTOPS_HOST_DEVICE Packed<Key> exact_bound(Team& team, const Row& row, Desk<Key>& desk, int k, int bits, bool largest,
                                           Packed<Key> prefix, int shift, int better) {
  using P = Packed<Key>;
  int same;
  do {
    const int next = shift > kDigitBits ? shift - kDigitBits : 0;
    const int digits = 1 << (shift - next);
    for (int i = team.thread; i < digits; i += team.threads) desk.histogram[i] = 0;
    team.sync();
    for (int i = team.thread; i < row.n; i += team.threads) {
      const P packed = pack(key_of(row.at(i), largest), i, bits);
      if (packed >> shift == prefix) team.count(&desk.histogram[static_cast<int>(packed >> next) & (digits - 1)]);
    }
    team.sync();
    int digit = digits - 1;
    while (better + desk.histogram[digit] < k) better += desk.histogram[digit--];
    same = desk.histogram[digit];
    team.sync();  // all have read it
    prefix = prefix << (shift - next) | digit;
    shift = next;
  } while (better + same > desk.capacity);
  return prefix << shift;
}

}  // namespace detail

// One row's selection: take() for each of its tiles in turn, then finish(). 0 < k <= row.n and k <= desk.capacity.
// Another row may follow on the same desk after a sync().
template <class Team, class Row, class Key = KeyOf<typename Row::Value>>
struct Selection {
  using V = typename Row::Value;
  using P = Packed<Key>;

  Team& team;
  Desk<Key>& desk;
  const int k;
  const bool largest;
  int bits = 1;   // of an index
  Key bound = 0;  // at least k elements of the tiles that were taken reach it
  bool bounded = false;
  bool lost = false;  // not all that reach it were kept

  ORTOPS_HOST_DEVICE Selection(Team& team, Desk<Key>& desk, int n, int k, bool largest)
      : team(team), desk(desk), k(k), largest(largest) {
    while (bits < 31 && n > 1 << bits) ++bits;
    if (team.thread == 0) *desk.held = 0, desk.result[0] = 0, desk.result[1] = 0;
    team.sync();
  }

  ORTOPS_HOST_DEVICE int enough() const { return k + k / 4 + 4; }

  // The k-th best of the groups' best elements; 0 where there are too few groups.
  ORTOPS_HOST_DEVICE Key bound_of_tile(const Row& row, const V (&best)[Row::kGroups]) {
    const int vectors = detail::min_of((row.end() - row.begin()) / Row::kVector, Row::kGroups * team.threads);
    if (2 * k > vectors) return 0;
    const bool alone = 4 * k <= detail::min_of(vectors, team.threads);  // a thread is one group
    Key keys[Row::kGroups];
    Key most = 0;
#ifdef __CUDA_ARCH__
#pragma unroll
#endif
    for (int group = 0; group < Row::kGroups; ++group) {
      keys[group] = key_of(best[group], largest) >> Row::kLowestBit;
      most = detail::max_of(most, keys[group]);
    }
    if constexpr (Team::kIsWarp) {
      if (alone && k <= kFewRounds) return of_lowest_bit(team.kth(most, k));
    }
    const Key mine = most;
    Key least = most;
    if (!alone) {
#ifdef __CUDA_ARCH__
#pragma unroll
#endif
      for (int group = 0; group < Row::kGroups; ++group) least = detail::min_of(least, keys[group]);
    }
    team.extremes(least, most, desk.result);
    return of_lowest_bit(detail::bound_of(team, desk.histogram, least, most, k, enough(), [&](auto&& add) {
      if (alone) return add(mine);
#ifdef __CUDA_ARCH__
#pragma unroll
#endif
      for (int group = 0; group < Row::kGroups; ++group) add(keys[group]);
    }));
  }
  // The lowest key that has these bits above the lowest bit that tells keys apart.
  ORTOPS_HOST_DEVICE static Key of_lowest_bit(Key bits) {
    const Key key = bits << Row::kLowestBit;
    return bits == 0 || key & kTopBit<Key> ? key : key | ((Key(1) << Row::kLowestBit) - 1);
  }

  // Puts the tile's elements aside that are better than the bound (or reach it). Whether the desk has fewer than
  // `limit` then.
  ORTOPS_HOST_DEVICE bool put(const Row& row, const V (&best)[Row::kGroups], bool reach, int limit) {
    const V least = value_of<V>(bound);
    int last = 0;
#ifdef __CUDA_ARCH__
#pragma unroll
#endif
    for (int group = 0; group < Row::kGroups; ++group) {
      if (best[group] < least || (!reach && best[group] == least)) continue;  // a NaN is neither
#ifdef __CUDA_ARCH__
#pragma unroll
#endif
      for (int i = 0; i < Row::kVector; ++i) {
        const V value = row.element(group, i);
        if (value < least || (!reach && value == least)) continue;
        const Key key = key_of(value, largest);
        const int index = row.index(group, i);
        if (key < bound || (!reach && key == bound) || index < 0 || index >= row.n) continue;
        last = team.add(desk.held, 1);
        if (last < desk.capacity) desk.entries[last] = pack(key, index, bits);
      }
    }
    return !team.any(last >= limit);
  }

  // The whole row, for which the desk has room.
  ORTOPS_HOST_DEVICE void take_all(const Row& row) {
    for (int i = team.thread; i < row.n; i += team.threads) {
      desk.entries[i] = pack(key_of(row.at(i), largest), i, bits);
    }
    if (team.thread == 0) *desk.held = row.n;
    team.sync();
  }

  ORTOPS_HOST_DEVICE void take(const Row& row) {
    if (lost) return;
    V best[Row::kGroups];
#ifdef __CUDA_ARCH__
#pragma unroll
#endif
    for (int group = 0; group < Row::kGroups; ++group) best[group] = row.best(group);
    const bool first = !bounded;
    if (first) {
      bounded = true;
      bound = bound_of_tile(row, best);
      lost = bound == 0;
      if (lost) return;
    }
    if constexpr (sizeof(P) == 8 && Row::kTiles) {
      if (!put(row, best, first, desk.capacity / 2)) tighten(row);
    } else {
      put(row, best, first, desk.capacity);  // finish() sees whether there was room
    }
  }

  // Much is on the desk: raises the bound, and drops what does not reach it.
  ORTOPS_HOST_DEVICE void tighten(const Row& row) {
    for (;;) {
      const int held = team.load(desk.held);
      const int count = detail::min_of(held, desk.capacity);
      const bool again = held > desk.capacity;  // of this tile not all have found room
      const P least = least_of(count);
      const Key raised = static_cast<Key>(least >> bits);
      lost = again && raised <= bound;  // too many equal ones
      if (lost) return;
      bound = raised;
      keep(count,
           [&](P mine) { return mine >= least && !(again && static_cast<int>(index_of(mine, bits)) >= row.begin()); });
      if (!again) return;
      for (int i = row.begin() + team.thread; i < row.end(); i += team.threads) {
        const Key key = key_of(row.at(i), largest);
        if (key < bound) continue;
        const int at = team.add(desk.held, 1);
        if (at < desk.capacity) desk.entries[at] = pack(key, i, bits);
      }
      team.sync();
    }
  }

  // What the k-th best of so many entries is, or slightly less.
  ORTOPS_HOST_DEVICE uint64_t least_of(int count) {
    uint64_t most = 0, least = ~uint64_t(0);
    for (int i = team.thread; i < count; i += team.threads) {
      most = detail::max_of<uint64_t>(most, desk.entries[i]);
      least = detail::min_of<uint64_t>(least, desk.entries[i]);
    }
    team.extremes(least, most, desk.result);
    return detail::bound_of(team, desk.histogram, least, most, k, enough(), [&](auto&& add) {
      for (int i = team.thread; i < count; i += team.threads) add(desk.entries[i]);
    });
  }

  // Calls emit(place, index) once for each place from 0 to k - 1.
  template <class Emit>
  ORTOPS_HOST_DEVICE void finish(const Row& row, bool sorted, Emit&& emit) {
    int count = team.load(desk.held);
    team.sync();
    if (lost || count < k || count > desk.capacity) {
      take_exactly(row);
      count = team.load(desk.held);
    } else if constexpr (sizeof(P) == 8) {
      if (count > kRankLimit && enough() <= kRankLimit) {
        const P least = least_of(count);
        keep(count, [&](P mine) { return mine >= least; });
        count = team.load(desk.held);
      }
    }
    detail::emit_best(team, desk, count, k, bits, sorted, emit);
  }

 private:
  // Of so many entries those that f is true for, at the front.
  template <class F>
  ORTOPS_HOST_DEVICE void keep(int count, F&& f) {
    team.sync();
    if (team.thread == 0) *desk.held = 0;
    for (int first = 0; first < count; first += team.threads) {
      const int i = first + team.thread;
      const P mine = i < count ? desk.entries[i] : 0;
      team.sync();  // these have been read, and no more than these are written
      if (i < count && f(mine)) desk.entries[team.add(desk.held, 1)] = mine;
    }
    team.sync();
  }

  // All that can be among the best k, by digits.
  ORTOPS_HOST_DEVICE void take_exactly(const Row& row) {
    P prefix = 0;
    int shift = 8 * sizeof(Key) + bits, better = 0;
    if (bound > key_of(worst<V>(), largest)) {  // else groups without elements may have been counted
      int mine = 0;
      for (int i = team.thread; i < row.n; i += team.threads) mine += key_of(row.at(i), largest) > bound;
      const int all = team.sum(mine, desk.result);
      if (all < k) {  // then the k-th best is equal to the bound, and the lowest indices of those that are decide
        prefix = bound;
        shift = bits;
        better = all;
      }
    }
    const P exact = detail::exact_bound(team, row, desk, k, bits, largest, prefix, shift, better);
    if (team.thread == 0) *desk.held = 0;  // all have read it: exact_bound has barriers
    team.sync();
    for (int i = team.thread; i < row.n; i += team.threads) {
      const P packed = pack(key_of(row.at(i), largest), i, bits);
      if (packed >= exact) desk.entries[team.add(desk.held, 1)] = packed;
    }
    team.sync();
  }
};

// The same of a row that is one tile; or less than the desk has room for, and all of it is ordered.
template <class Team, class Row, class Key, class Emit>
ORTOPS_HOST_DEVICE void select_best(Team& team, Row& row, Desk<Key>& desk, int k, bool largest, bool sorted,
                                    Emit&& emit) {
  const bool fits = row.n <= desk.capacity;
  if (!fits) row.load();
  Selection<Team, Row, Key> selection(team, desk, row.n, k, largest);
  if (fits) {
    selection.take_all(row);
  } else {
    selection.take(row);
  }
  selection.finish(row, sorted, emit);
}

}  // namespace ortops
