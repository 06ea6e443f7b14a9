// The k best elements of a row, found by a team of threads: a warp or a block; on the host, in a test, a few threads.
//
// The row is read once, into registers. Its elements fall into groups (a thread's, or a vector of a thread's), and the
// k-th best of the groups' best elements is a bound that at least k elements reach; of a row in no particular order few
// more than k do. Those are put into shared memory, in any order, for what comes after orders them by value and index,
// which no two share. So the result depends on nothing but the row.
//
// Where too many reach the bound (equal values, orders that defy the groups), the digits of the k-th best are found by
// histograms, index included, from the highest down until few enough are left.
//
// A Team has `thread` and `threads`, sync(), sum(int) (of all; barrier included; it takes the next of `sums`),
// add(int*, int) and load(int*) (atomic), and count(int*) (adds 1, of many threads at once). A Row has `n` elements,
// at(i) (oriented), load(), and after that best(group), reaching(bound) (a mask of the thread's elements) and index(bit
// of that mask).
#pragma once

#include "ops/topk/order.h"

namespace ortops {

constexpr int kDigitBits = 8;
constexpr int kDigits = 1 << kDigitBits;
constexpr int kCounters = 72;    // of which sums take one each: one a bit of a key, and three
constexpr int kRankLimit = 256;  // up to so many are ordered by counting for each those that are better: no barriers

// A team's shared memory.
template <class Key>
struct Desk {
  Packed<Key>* entries;  // capacity of them, a power of 2, and one more
  int* histogram;        // kDigits
  int* counters;         // kCounters
  int capacity;

  static constexpr size_t bytes(int capacity) {
    const size_t entries = (capacity + 1) * sizeof(Packed<Key>);
    return (entries + sizeof(int) * (kDigits + kCounters) + 15) / 16 * 16;
  }
  ORTOPS_HOST_DEVICE Desk(char* memory, int capacity)
      : entries(reinterpret_cast<Packed<Key>*>(memory)),
        histogram(reinterpret_cast<int*>(entries + capacity + 1)),
        counters(histogram + kDigits),
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

ORTOPS_HOST_DEVICE int lowest_bit(uint64_t mask) {
#ifdef __CUDA_ARCH__
  return __ffsll(static_cast<long long>(mask)) - 1;
#else
  return __builtin_ctzll(mask);
#endif
}

ORTOPS_HOST_DEVICE int round_up_to_power(int value) {
  int power = 1;
  while (power < value) power *= 2;
  return power;
}

// Calls emit(place, index) for the k best of the entries: in their order, or in that of their indices.
template <class Team, class Key, class Emit>
ORTOPS_HOST_DEVICE void emit_best(Team& team, Desk<Key>& desk, int count, int k, int bits, bool sorted, Emit&& emit) {
  using P = Packed<Key>;
  P* entries = desk.entries;
  const P index_mask = (P(1) << bits) - 1;
  if (count <= kRankLimit) {
    P& last = entries[desk.capacity];  // the k-th best
    for (int i = team.thread; i < count; i += team.threads) {
      const P mine = entries[i];
      int better = 0;
      for (int j = 0; j < count; ++j) better += entries[j] > mine;
      if (sorted && better < k) emit(better, index_of(mine, bits));
      if (!sorted && better == k - 1) last = mine;
    }
    if (sorted) return;
    team.sync();
    const P bound = last;
    for (int i = team.thread; i < count; i += team.threads) {
      const P mine = entries[i];
      if (mine < bound) continue;
      int before = 0;
      for (int j = 0; j < count; ++j) {
        before += entries[j] >= bound && (entries[j] & index_mask) > (mine & index_mask);
      }
      emit(before, index_of(mine, bits));
    }
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

// Calls emit(place, index) once for each place from 0 to k - 1; 0 < k <= row.n and k <= desk.capacity. Another row may
// follow on the same desk after a sync().
template <class Team, class Row, class Key, class Emit>
ORTOPS_HOST_DEVICE void select_best(Team& team, Row& row, Desk<Key>& desk, int k, bool largest, bool sorted,
                                    Emit&& emit) {
  using V = typename Row::Value;
  using P = Packed<Key>;
  int bits = 1;
  while (row.n > 1 << bits && bits < 31) ++bits;
  if (row.n <= desk.capacity) {
    for (int i = team.thread; i < row.n; i += team.threads) {
      desk.entries[i] = pack(key_of(row.at(i), largest), i, bits);
    }
    team.sync();
    detail::emit_best(team, desk, row.n, k, bits, sorted, emit);
    return;
  }

  row.load();
  for (int i = team.thread; i < kCounters; i += team.threads) desk.counters[i] = 0;
  team.sync();
  int* held = &desk.counters[0];
  team.sums = &desk.counters[1];

  // With many more groups than k few elements reach the bound beside the best k.
  const int vectors = row.n / Row::kVector;
  const bool alone = 4 * k <= (vectors < team.threads ? vectors : team.threads);  // a thread is one group
  Key bound = 0;
  if (2 * k <= vectors) {
    Key best[Row::kGroups];
#ifdef __CUDA_ARCH__
#pragma unroll
#endif
    for (int group = 0; group < Row::kGroups; ++group) best[group] = key_of(row.best(group), largest);
    if (alone) {
#ifdef __CUDA_ARCH__
#pragma unroll
#endif
      for (int group = 1; group < Row::kGroups; ++group) {
        best[0] = best[group] > best[0] ? best[group] : best[0];
        best[group] = 0;
      }
    }
    for (int bit = 8 * sizeof(Key) - 1; bit >= Row::kLowestBit; --bit) {
      const Key next = bound | Key(1) << bit;
      int reaching = 0;
#ifdef __CUDA_ARCH__
#pragma unroll
#endif
      for (int group = 0; group < Row::kGroups; ++group) reaching += best[group] >= next;
      const int groups = team.sum(reaching);
      if (groups < k) continue;
      bound = next;
      if (groups <= k + k / 4 + 4) break;  // close enough
    }
  }

  // A NaN reaches every bound: where NaN counts as the smallest that is one too many, which does no harm.
  if (bound != 0) {
    for (uint64_t mask = row.reaching(value_of<V>(bound)); mask != 0; mask &= mask - 1) {
      if (team.load(held) > desk.capacity) break;
      const int at = team.add(held, 1);
      const int index = row.index(detail::lowest_bit(mask));
      if (at < desk.capacity) desk.entries[at] = pack(key_of(row.at(index), largest), index, bits);
    }
  }
  team.sync();
  int count = *held;
  if (count < k || count > desk.capacity) {
    P prefix = 0;
    int shift = 8 * sizeof(Key) + bits, better = 0;
    if (bound > key_of(worst<V>(), largest)) {  // else groups without elements may have been counted
      int mine = 0;
      for (int i = team.thread; i < row.n; i += team.threads) mine += key_of(row.at(i), largest) > bound;
      const int all = team.sum(mine);
      if (all < k) {  // then the k-th best is equal to the bound, and the lowest indices of those that are decide
        prefix = bound;
        shift = bits;
        better = all;
      }
    }
    const P exact = detail::exact_bound(team, row, desk, k, bits, largest, prefix, shift, better);
    if (team.thread == 0) *held = 0;  // all have read it: exact_bound has barriers
    team.sync();
    for (int i = team.thread; i < row.n; i += team.threads) {
      const P packed = pack(key_of(row.at(i), largest), i, bits);
      if (packed >= exact) desk.entries[team.add(held, 1)] = packed;
    }
    team.sync();
    count = *held;
  }
  detail::emit_best(team, desk, count, k, bits, sorted, emit);
}

}  // namespace ortops
