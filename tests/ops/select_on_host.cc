// What the CUDA kernel of SelectTopK does with a row (ops/topk/select.h), done by threads of the host on rows that are
// afraid of something, and compared with a sort. The threads stand for those of a block; a sanitizer for threads finds
// a barrier that is missing.
#include <algorithm>
#include <barrier>
#include <cmath>
#include <cstdio>
#include <numeric>
#include <random>
#include <thread>
#include <vector>

#include "ops/topk/select.h"

using namespace ortops;

struct Team {
  int thread, threads;
  std::barrier<>* barrier;
  int* sums = nullptr;

  void sync() { barrier->arrive_and_wait(); }
  int add(int* to, int value) { return __atomic_fetch_add(to, value, __ATOMIC_RELAXED); }
  int load(const int* from) { return __atomic_load_n(from, __ATOMIC_RELAXED); }
  void count(int* to) { add(to, 1); }
  int sum(int value) {
    int* total = sums++;
    add(total, value);
    sync();
    return load(total);
  }
};

template <class V>
struct Row {
  using Value = V;
  static constexpr int kVector = 4, kGroups = 4, kLowestBit = 0;
  const V* x;
  int n;
  bool largest;
  int thread, threads;

  V at(int i) const { return oriented(x[i], largest); }
  void load() {}
  int index(int bit) const { return (bit / kVector * threads + thread) * kVector + bit % kVector; }
  V best(int group) const {
    V result = worst<V>();
    for (int i = 0; i < kVector; ++i) {
      const int at = index(group * kVector + i);
      if (at<n&& this->at(at)> result) result = this->at(at);
    }
    return result;
  }
  uint64_t reaching(V bound) const {
    uint64_t mask = 0;
    for (int bit = 0; bit < kVector * kGroups; ++bit) {
      if (index(bit) < n && !(at(index(bit)) < bound)) mask |= uint64_t(1) << bit;
    }
    return mask;
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
            select_best(team, row, desk, k, largest, sorted, [&](int place, uint32_t index) { got.at(place) = index; });
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
  for (const int n : {1, 31, most / 2 + 3, most}) {
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
