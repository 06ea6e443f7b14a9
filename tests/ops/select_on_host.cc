// What the CUDA kernel of SelectTopK does with a row (ops/topk/select.h), done by threads of the host on rows that are
// afraid of something, and compared with a sort. The threads stand for those of a block; a sanitizer for threads finds
// a barrier that is missing.
#include <algorithm>
#include <barrier>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <numeric>
#include <random>
#include <thread>
#include <vector>

#include "ops/topk/select.h"

using namespace ortops;

struct Team {
  int thread, threads;
  std::barrier<>* barrier;
  static constexpr bool kIsWarp = false;

  void sync() { barrier->arrive_and_wait(); }
  int add(int* to, int value) { return __atomic_fetch_add(to, value, __ATOMIC_RELAXED); }
  int load(const int* from) { return __atomic_load_n(from, __ATOMIC_RELAXED); }
  void count(int* to) { add(to, 1); }
  int parts(int) { return 1; }
  int sum_parts(int value, int) { return value; }
  template <class F>
  uint64_t together(uint64_t* result, F&& f) {
    f(result);
    sync();
    const uint64_t all = __atomic_load_n(result, __ATOMIC_RELAXED);
    sync();
    if (thread == 0) *result = 0;
    return all;
  }
  bool any(bool value) {
    static int64_t results[2];
    int64_t* result = &results[turn++ % 2];
    if (value) __atomic_store_n(result, 1, __ATOMIC_RELAXED);
    sync();
    const bool all = __atomic_load_n(result, __ATOMIC_RELAXED) != 0;
    sync();
    if (thread == 0) __atomic_store_n(result, 0, __ATOMIC_RELAXED);
    return all;
  }
  int sum(int value, uint64_t* result) {
    return static_cast<int>(together(result, [&](uint64_t* r) { __atomic_fetch_add(r, value, __ATOMIC_RELAXED); }));
  }
  template <class U>
  void extremes(U& least, U& most, uint64_t* result) {
    const auto raise = [](uint64_t to) {
      return [to](uint64_t* r) {
        uint64_t old = __atomic_load_n(r, __ATOMIC_RELAXED);
        while (old < to && !__atomic_compare_exchange_n(r, &old, to, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED)) {
        }
      };
    };
    most = static_cast<U>(together(result, raise(most)));
    least = static_cast<U>(~together(result + 1, raise(U(~least))));
  }
  int find(const int* histogram, int wanted, int& above) {
    int digit = kDigits - 1;
    for (; histogram[digit] < wanted; wanted -= histogram[digit--]) {
      above += histogram[digit];
      if (digit == 0) std::abort();  // there are not so many
    }
    return digit;
  }
  int turn = 0;
};

// In tiles of 4 vectors a thread.
template <class V>
struct Row {
  using Value = V;
  static constexpr int kVector = 4, kGroups = 4, kLowestBit = 0;
  static constexpr bool kTiles = true;
  const V* x;
  int n;
  bool largest;
  int thread, threads;
  int before = 0;  // elements of the first tile that are before the row
  int tile = 0;

  int start() const { return tile * threads * kVector * kGroups - before; }
  int begin() const { return std::max(start(), 0); }
  int end() const { return std::min(start() + threads * kVector * kGroups, n); }

  V at(int i) const { return oriented(x[i], largest); }
  void load() {}
  int index(int group, int i) const { return start() + (group * threads + thread) * kVector + i; }
  V element(int group, int i) const {
    return index(group, i) >= 0 && index(group, i) < n ? at(index(group, i)) : worst<V>();
  }
  V best(int group) const {
    V result = element(group, 0);
    for (int i = 1; i < kVector; ++i) {
      const V other = element(group, i);
      if (other > result || other != other) result = other;
    }
    return result;
  }
};

int failures = 0;

template <class V>
void check(const std::vector<V>& x, int k, int threads, int capacity, const char* what) {
  using Key = KeyOf<V>;
  for (const bool largest : {true, false}) {
    std::vector<int> expected(x.size());
    std::iota(expected.begin(), expected.end(), 0);
    std::stable_sort(expected.begin(), expected.end(), [&](int a, int b) {
      const bool a_nan = x[a] != x[a], b_nan = x[b] != x[b];
      if (a_nan || b_nan) return largest ? a_nan && !b_nan : b_nan && !a_nan;
      return largest ? x[a] > x[b] : x[a] < x[b];
    });
    expected.resize(k);
    for (const bool sorted : {true, false}) {
      if (!sorted) std::sort(expected.begin(), expected.end());
      std::vector<__int128> desk_memory(Desk<Key>::bytes(capacity) / 16 + 1, -1);
      std::vector<int> got(k, -1);
      std::barrier barrier(threads);
      std::vector<std::thread> pool;
      for (int thread = 0; thread < threads; ++thread) {
        pool.emplace_back([&, thread] {
          Team team = {thread, threads, &barrier};
          Row<V> row = {x.data(), static_cast<int>(x.size()), largest, thread, threads};
          Desk<Key> desk(reinterpret_cast<char*>(desk_memory.data()), capacity);
          for (int turn = 0; turn < 2; ++turn) {
            const auto emit = [&](int place, uint32_t index) { got.at(place) = index; };
            if (turn == 0 && row.n > threads * 16) continue;
            if (turn == 0) {
              select_best(team, row, desk, k, largest, sorted, emit);
            } else {
              Selection<Team, Row<V>> selection(team, desk, row.n, k, largest);
              row.before = 3;
              for (; row.start() < row.n; ++row.tile) selection.take(row);
              selection.finish(row, sorted, emit);
            }
            team.sync();
          }
        });
      }
      for (auto& one : pool) one.join();
      if (got == expected) continue;
      ++failures;
      std::printf("%s: %zu elements, k %d, %d threads, room for %d, %s, %s\n", what, x.size(), k, threads, capacity,
                  largest ? "largest" : "smallest", sorted ? "sorted" : "not sorted");
    }
  }
}

template <class V>
void check_all(int threads) {
  std::mt19937 random(1);
  const int most = threads * 16;
  for (const int n : {1, 31, most / 2 + 3, most, 9 * most + 5}) {
    for (const int k : {1, 2, 9, n / 2, n}) {
      if (k > n || k < 1) continue;
      for (const int room : {32, 256}) {
        int capacity = room;
        while (capacity < k) capacity *= 2;
        std::vector<V> x(n);
        const auto fill = [&](auto&& f) {
          for (int i = 0; i < n; ++i) x[i] = static_cast<V>(f(i));
        };
        const auto pick = [&](int values) { return static_cast<int>(random() % values); };
        fill([&](int) { return pick(1 << 30) - (1 << 29); });
        check(x, k, threads, capacity, "random");
        fill([&](int) { return pick(3) - 1; });
        check(x, k, threads, capacity, "three values");
        fill([](int) { return 7; });
        check(x, k, threads, capacity, "constant");
        fill([](int i) { return i; });
        check(x, k, threads, capacity, "ascending");
        fill([&](int i) { return i % 97 == 3 ? i : 0; });
        check(x, k, threads, capacity, "mostly zero");
        if constexpr (is_float<V>) {
          fill([&](int) { return pick(4) ? pick(9) - 4.5 : NAN; });
          check(x, k, threads, capacity, "some NaN");
          fill([&](int) { return pick(9) ? NAN : 1; });
          check(x, k, threads, capacity, "mostly NaN");
          fill([&](int) { return NAN; });
          check(x, k, threads, capacity, "all NaN");
          fill([&](int) { return pick(2) ? 0.0 : -0.0; });
          check(x, k, threads, capacity, "zeros of both signs");
          fill([&](int) { return pick(3) ? -INFINITY : pick(2) ? INFINITY : NAN; });
          check(x, k, threads, capacity, "infinities");
        } else {
          fill([&](int) { return pick(2) ? std::numeric_limits<V>::min() : std::numeric_limits<V>::max(); });
          check(x, k, threads, capacity, "both ends");
        }
      }
    }
  }
}

int main() {
  check_all<float>(8);
  check_all<int64_t>(8);
  std::printf("%d failures\n", failures);
  return failures != 0;
}
