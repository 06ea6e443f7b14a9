// SelectTopK. A short row is a warp's, a longer one a block's, which read it once (select.h has how). A row that is too
// long for the registers of a block is cut into slices: each gives its k best, in the order of their indices, and of
// those, one after the other, the same kernel takes the k best. Where k is beyond that too, all is sorted by CUB.
//
// Other axes than the last are read with a stride while the caches hold what is read around it, and else are transposed
// first.
#include <algorithm>
#include <bit>
#include <utility>

#include "core/cuda.h"
#include "device/index.h"
#include "device/reduce.cuh"
#include "device/vector.cuh"
#include "gen/topk.h"
#include "ops/topk/select.h"
#include "ops/topk/sort.h"

namespace ortops {
namespace {

// Worked out for an H200 (benchmarks/results/h200-movement.md has what it gives, short of the copy floor); it has 132
// multiprocessors of 64 K registers and 50 MB of L2.
struct Tuning {
  static constexpr int kFewLoads = 4;     // of a vector a thread, for short rows
  static constexpr int kLoads = 8;        // and for long ones: 32 registers, so that two blocks of 512 fit
  static constexpr int kWarps = 4;        // rows a block where a row is a warp's
  static constexpr int kWarpK = 64;       // beyond it a warp's ordering of what it found takes too long
  static constexpr int kFewRows = 1024;   // that leave room for a block each,
  static constexpr int kWarpAlone = 128;  // unless they are so short
  static constexpr int kMinThreads = 64;
  static constexpr int kMaxThreads = 512;
  static constexpr int kMaxK = 2048;           // selected; more are sorted
  static constexpr int kCapacity = 2 * kMaxK;  // of what a block orders in shared memory
  static constexpr int kSlices = 264;          // wanted where rows are cut: two blocks a multiprocessor
  static constexpr int kMinSlice = 8192;       // elements
  // Rows of several tiles: what a tile is, and how many blocks of a multiprocessor are to take turns.
  static constexpr int kStreamThreads = 256;
  static constexpr int kStreamBlocks = 3;
  static constexpr int kStreamRows = 16;  // of fewer rows the slices are many, and a tile each
  static constexpr int kStreamLoads = 4;
  static constexpr int kStreamK = 256;  // a quarter of a tile's vectors
  static constexpr int kFewLanes = 8;   // of a short row, where little of it is wanted
  static constexpr int kFewK = 8;
  static constexpr int64_t kCached = 4 << 20;  // bytes that are read with a stride rather than transposed
  static constexpr int64_t kSorted = 1 << 26;  // elements sorted at a time, where rows are shorter
};

// Elements of a vector: 16 bytes, but no more than that a mask of 64 bits has room for a thread's.
template <class T>
constexpr int kVector = std::min<int>(kWidth<T>, 64 / Tuning::kLoads);

// Elements that a team of so many threads holds.
template <class T>
constexpr int64_t held_by(int threads, int loads) {
  return int64_t(threads) * loads * kVector<T>;
}

// How rows lie in memory: element i of row r at (r / inner) * inner * size + r % inner + i * inner.
struct Rows {
  int64_t size, inner;

  __device__ __forceinline__ int64_t begin(int64_t row) const {
    return inner == 1 ? row * size : row / inner * inner * size + row % inner;
  }
};

template <class T>
struct Problem {
  const T* x;
  Rows in;
  int64_t rows;    // slices of rows
  int slice;       // elements of a slice, but for the last of a row
  int slices;      // a row
  const int* map;  // the index of an element in the original row, where x has been selected from that; or null
  T* values;
  int64_t* indices;  // results, in rows of the layout `out`
  int* picked;       // or, in their place, indices of what was selected of slices, in rows of `out` without a stride
  Rows out;
  int k;  // of a slice that has as many elements, else all of it
  int capacity;
  bool largest, sorted;
};

template <class U>
__device__ __forceinline__ U most_of_warp(U value) {
  if constexpr (sizeof(U) == 4) {
    return __reduce_max_sync(0xffffffffu, value);
  } else {
#pragma unroll
    for (int lane = kWarp / 2; lane > 0; lane /= 2) {
      value = max(value, static_cast<U>(__shfl_xor_sync(0xffffffffu, static_cast<unsigned long long>(value), lane)));
    }
    return value;
  }
}

struct WarpTeam {
  int thread;
  static constexpr int threads = kWarp;
  static constexpr bool kIsWarp = true;

  __device__ __forceinline__ void sync() const { __syncwarp(); }
  __device__ __forceinline__ bool any(bool value) const {
    __syncwarp();
    return __any_sync(0xffffffffu, value);
  }
  __device__ __forceinline__ int sum(int value, uint64_t*) const { return __reduce_add_sync(0xffffffffu, value); }
  template <class U>
  __device__ __forceinline__ void extremes(U& least, U& most, uint64_t*) const {
    most = most_of_warp(most);
    least = ~most_of_warp(U(~least));
  }
  // The k-th largest, or of equal ones more than that many.
  template <class U>
  __device__ __forceinline__ U kth(U mine, int k) const {
    for (;;) {
      const U most = most_of_warp(mine);
      k -= __popc(__ballot_sync(0xffffffffu, mine == most));
      if (k <= 0 || most == 0) return most;
      if (mine == most) mine = 0;
    }
  }
};

struct BlockTeam {
  int thread, threads;
  static constexpr bool kIsWarp = false;

  __device__ __forceinline__ void sync() const { __syncthreads(); }
  __device__ __forceinline__ bool any(bool value) const { return __syncthreads_or(value) != 0; }
  __device__ __forceinline__ int sum(int value, uint64_t* result) const {
    int* total = reinterpret_cast<int*>(result);
    value = __reduce_add_sync(0xffffffffu, value);
    if (thread % kWarp == 0 && value != 0) atomicAdd(total, value);
    __syncthreads();
    const int all = *total;
    __syncthreads();
    if (thread == 0) *result = 0;
    return all;
  }
  template <class U>
  __device__ __forceinline__ void extremes(U& least, U& most, uint64_t* result) const {
    using Word = std::conditional_t<sizeof(U) == 4, unsigned, unsigned long long>;
    most = most_of_warp(most);
    least = most_of_warp(U(~least));
    if (thread % kWarp == 0) {
      atomicMax(reinterpret_cast<Word*>(result), static_cast<Word>(most));
      atomicMax(reinterpret_cast<Word*>(result + 1), static_cast<Word>(least));
    }
    __syncthreads();
    most = *reinterpret_cast<const Word*>(result);
    least = ~static_cast<U>(*reinterpret_cast<const Word*>(result + 1));
    __syncthreads();
    if (thread == 0) result[0] = result[1] = 0;
  }
};

template <class Base>
struct Team : Base {
  __device__ __forceinline__ int add(int* to, int value) const { return atomicAdd(to, value); }
  __device__ __forceinline__ int load(const int* from) const { return *static_cast<const volatile int*>(from); }
  // The digit of the wanted-th largest number, of which a histogram is given; adds how many have a larger one.
  __device__ __forceinline__ int find(const int* histogram, int wanted, int& above) const {
    constexpr int kOwn = kDigits / kWarp;
    const int lane = static_cast<int>(threadIdx.x % kWarp);
    int counts[kOwn], sum = 0;
#pragma unroll
    for (int i = 0; i < kOwn; ++i) sum += counts[i] = histogram[lane * kOwn + i];
    int before = sum;  // and then of this lane and those above it, which have the larger digits
#pragma unroll
    for (int step = 1; step < kWarp; step *= 2) {
      const int other = __shfl_down_sync(0xffffffffu, before, step);
      if (lane + step < kWarp) before += other;
    }
    const bool here = before >= wanted && before - sum < wanted;
    before -= sum;
    int digit = 0;
    bool found = false;
#pragma unroll
    for (int i = kOwn - 1; i >= 0; --i) {
      found = found || before + counts[i] >= wanted;
      if (!found) before += counts[i];
      digit += found;
    }
    const int lane_here = __ffs(static_cast<int>(__ballot_sync(0xffffffffu, here))) - 1;
    above += __shfl_sync(0xffffffffu, before, lane_here);
    return __shfl_sync(0xffffffffu, lane * kOwn + digit - 1, lane_here);
  }
  // How many neighbouring threads work on one of so many items, and the sum of what they have.
  __device__ __forceinline__ int parts(int items) const {
    int parts = kWarp;
    while (parts > 1 && items * parts > this->threads) parts /= 2;
    return parts;
  }
  __device__ __forceinline__ int sum_parts(int value, int parts) const {
    for (int step = parts / 2; step > 0; step /= 2) value += __shfl_xor_sync(0xffffffffu, value, step);
    return value;
  }
  // Where many values are equal, a warp's threads mostly count in one place.
  __device__ __forceinline__ void count(int* to) const {
    const unsigned active = __activemask();
    int equal;
    __match_all_sync(active, reinterpret_cast<unsigned long long>(to), &equal);
    if (!equal) {
      atomicAdd(to, 1);
    } else if (static_cast<int>(threadIdx.x % kWarp) == __ffs(static_cast<int>(active)) - 1) {
      atomicAdd(to, __popc(active));
    }
  }
};

// The larger of two, or NaN where one is.
__device__ __forceinline__ float most_or_nan(float a, float b) {
  float result;
  asm("max.NaN.f32 %0, %1, %2;" : "=f"(result) : "f"(a), "f"(b));
  return result;
}
__device__ __forceinline__ int32_t most_or_nan(int32_t a, int32_t b) { return max(a, b); }
__device__ __forceinline__ int64_t most_or_nan(int64_t a, int64_t b) { return max(a, b); }
template <class T>
__device__ __forceinline__ uint32_t most_of_pairs(uint32_t a, uint32_t b) {
  uint32_t result;
  if constexpr (std::is_same_v<T, float16>) {
    asm("max.NaN.f16x2 %0, %1, %2;" : "=r"(result) : "r"(a), "r"(b));
  } else {
    asm("max.NaN.bf16x2 %0, %1, %2;" : "=r"(result) : "r"(a), "r"(b));
  }
  return result;
}

template <class T>
constexpr bool kPairs = std::is_same_v<T, float16> || std::is_same_v<T, bfloat16>;

// A row of which each thread holds kGroups vectors, of one tile, in registers. They lie where memory is aligned to
// them, so that the first and the last may hold elements that are not the row's; with a stride they are put together
// from elements.
template <class T, int kLoads, bool kStrided, bool kManyTiles = false>
struct Held {
  using Value = Compared<T>;
  using Elements = Vector<T, ortops::kVector<T>>;
  using Words = ortops::detail::WordsOf<Elements>;  // as which they take the fewest registers
  static constexpr int kVector = ortops::kVector<T>;
  static constexpr int kGroups = kLoads;
  static constexpr bool kTiles = kManyTiles;
  static constexpr int kLowestBit = kLowestKeyBit<T>;

  const T* x;
  int64_t stride;
  bool largest;
  int n;
  int thread, threads;
  int before;     // elements of the first vector that are before the row
  int start = 0;  // of the tile, from the first vector on
  Words held[kLoads];

  __device__ __forceinline__ Held(const T* x, int64_t stride, bool largest, int n, int thread, int threads)
      : x(x), stride(kStrided ? stride : 1), largest(largest), n(n), thread(thread), threads(threads) {
    before = kStrided ? 0 : static_cast<int>(reinterpret_cast<uintptr_t>(x) / sizeof(T) % kVector);
  }

  __device__ __forceinline__ int tiles() const {
    const int tile = kLoads * threads * kVector;
    return (n + before - 1) / tile + 1;
  }
  __device__ __forceinline__ Value at(int i) const { return compared(oriented(x[i * stride], largest)); }

  // Of the thread's vector, where its element 0 is in the row.
  __device__ __forceinline__ int first(int step) const { return start + (step * threads + thread) * kVector - before; }
  __device__ __forceinline__ int begin() const { return max(start - before, 0); }
  __device__ __forceinline__ int end() const { return min(start - before + kLoads * threads * kVector, n); }
  __device__ __forceinline__ int index(int step, int i) const { return first(step) + i; }

  __device__ __forceinline__ Elements elements(int step) const {
    return ortops::detail::bit_cast<Elements>(held[step]);
  }
  __device__ __forceinline__ Value element(int step, int i) const { return compared(elements(step)[i]); }

  // Begins to read a tile.
  __device__ __forceinline__ void fetch(int tile, Words (&words)[kLoads]) const {
    const int offset = tile * kLoads * threads * kVector - start;
#pragma unroll
    for (int step = 0; step < kLoads; ++step) {
      const int at = first(step) + offset;
      Elements loaded;
      if constexpr (kStrided) {
#pragma unroll
        for (int i = 0; i < kVector; ++i) loaded[i] = ortops::load<1>(x + (at + i) * stride, at + i < n)[0];
      } else {
        loaded = ortops::load<kVector, Reuse::none>(x + at, at < n);
      }
      words[step] = ortops::detail::bit_cast<Words>(loaded);
    }
  }

  // Takes what was read of the tile. What lies outside of the row is held as the worst value.
  __device__ __forceinline__ void settle(int tile, const Words (&words)[kLoads]) {
    start = tile * kLoads * threads * kVector;
#pragma unroll
    for (int step = 0; step < kLoads; ++step) {
      Elements turned;
      if constexpr (sizeof(T) <= 4) {
        Words all = words[step];
        const uint32_t turns = turn<T>(largest) * (sizeof(T) == 4 ? 1u : sizeof(T) == 2 ? 0x10001u : 0x1010101u);
#pragma unroll
        for (int i = 0; i < int(sizeof(Words) / 4); ++i) all[i] ^= turns;
        turned = ortops::detail::bit_cast<Elements>(all);
      } else {
        turned = ortops::detail::bit_cast<Elements>(words[step]);
#pragma unroll
        for (int i = 0; i < kVector; ++i) turned[i] = oriented(turned[i], largest);
      }
      if (first(step) < 0 || first(step) + kVector > n) {
#pragma unroll
        for (int i = 0; i < kVector; ++i) {
          if (first(step) + i < 0 || first(step) + i >= n) turned[i] = worst<T>();
        }
      }
      held[step] = ortops::detail::bit_cast<Words>(turned);
    }
  }

  __device__ __forceinline__ void load() {
    fetch(0, held);
    settle(0, held);
  }

  __device__ __forceinline__ Value best(int group) const {
    if constexpr (kPairs<T>) {
      uint32_t most = held[group][0];
#pragma unroll
      for (int i = 1; i < kVector / 2; ++i) most = most_of_pairs<T>(most, held[group][i]);
      const auto both = ortops::detail::bit_cast<Vector<T, 2>>(most);
      return most_or_nan(compared(both[0]), compared(both[1]));
    } else {
      const Elements all = elements(group);
      Value result = compared(all[0]);
#pragma unroll
      for (int i = 1; i < kVector; ++i) result = most_or_nan(result, compared(all[i]));
      return result;
    }
  }
};

// One of the problem's slices.
template <class T>
struct Slice {
  const T* x;
  int n, k, first;
  const int* map;
  int64_t out;

  __device__ __forceinline__ Slice(const Problem<T>& p, int64_t row) {
    const int64_t whole = p.slices == 1 ? row : row / p.slices;
    const int slice = static_cast<int>(p.slices == 1 ? 0 : row % p.slices);
    first = slice * p.slice;  // rows have less than 2^31
    n = static_cast<int>(min(int64_t(p.slice), p.in.size - first));
    k = min(p.k, n);
    x = p.x + p.in.begin(whole) + first * p.in.inner;
    map = p.map ? p.map + whole * p.in.size + first : nullptr;
    out = p.picked ? whole * p.out.size + int64_t(slice) * p.k : p.out.begin(whole);
  }
  __device__ __forceinline__ void write(const Problem<T>& p, int place, uint32_t index) const {
    const int original = map ? map[index] : first + static_cast<int>(index);
    if (p.picked) {
      p.values[out + place] = x[index * p.in.inner];
      p.picked[out + place] = original;
    } else {
      p.values[out + place * p.out.inner] = x[index * p.in.inner];
      p.indices[out + place * p.out.inner] = original;
    }
  }
};

template <class T, int kLoads, bool kStrided, bool kWarpRows>
__global__ void __launch_bounds__(kWarpRows ? kWarp* Tuning::kWarps : Tuning::kMaxThreads,
                                  kStrided                      ? 1
                                  : !kWarpRows                  ? 2
                                  : kLoads <= Tuning::kFewLoads ? 7
                                                                : 5) select_kernel(const Problem<T> p) {
  using Key = KeyOf<Compared<T>>;
  extern __shared__ uint4 memory[];
  char* own = reinterpret_cast<char*>(memory);
  int64_t row = blockIdx.x;
  int64_t step = gridDim.x;
  Team<std::conditional_t<kWarpRows, WarpTeam, BlockTeam>> team;
  if constexpr (kWarpRows) {
    const int warp = threadIdx.x / kWarp;
    own += warp * Desk<Key>::bytes(p.capacity);
    row = row * Tuning::kWarps + warp;
    step *= Tuning::kWarps;
    team.thread = threadIdx.x % kWarp;
  } else {
    team.thread = threadIdx.x;
    team.threads = blockDim.x;
  }
  Desk<Key> desk(own, p.capacity);
  for (; row < p.rows; row += step) {
    const Slice<T> slice(p, row);
    Held<T, kLoads, kStrided> held(slice.x, p.in.inner, p.largest, slice.n, team.thread, team.threads);
    select_best(team, held, desk, slice.k, p.largest, p.sorted,
                [&](int place, uint32_t index) { slice.write(p, place, index); });
    team.sync();
  }
}

// Rows of several tiles: each tile is read while the one before it, maybe of the row before, is selected from.
template <class T>
__global__ void __launch_bounds__(Tuning::kStreamThreads, Tuning::kStreamBlocks) stream_kernel(const Problem<T> p) {
  using Row = Held<T, Tuning::kStreamLoads, false, true>;
  using Key = KeyOf<Compared<T>>;
  extern __shared__ uint4 memory[];
  Desk<Key> desk(reinterpret_cast<char*>(memory), p.capacity);
  Team<BlockTeam> team;
  team.thread = threadIdx.x;
  team.threads = Tuning::kStreamThreads;
  const auto hold = [&](const Slice<T>& slice) {
    return Row(slice.x, 1, p.largest, slice.n, team.thread, Tuning::kStreamThreads);
  };
  int64_t row = blockIdx.x;
  typename Row::Words fetched[Tuning::kStreamLoads];
  hold(Slice<T>(p, row)).fetch(0, fetched);
  for (; row < p.rows; row += gridDim.x) {
    const Slice<T> slice(p, row);
    Row held = hold(slice);
    Selection<Team<BlockTeam>, Row> selection(team, desk, slice.n, slice.k, p.largest);
    const int tiles = held.tiles();
    for (int tile = 0; tile < tiles; ++tile) {
      held.settle(tile, fetched);
      if (tile + 1 < tiles) {
        held.fetch(tile + 1, fetched);
      } else if (row + gridDim.x < p.rows) {
        hold(Slice<T>(p, row + gridDim.x)).fetch(0, fetched);
      }
      selection.take(held);
    }
    selection.finish(held, p.sorted, [&](int place, uint32_t index) { slice.write(p, place, index); });
    team.sync();
  }
}

// Short rows, each of a few lanes, that take one of the best after the other.
template <class T, int kVectors>
__global__ void __launch_bounds__(256) few_kernel(const Problem<T> p) {
  constexpr int kLanes = Tuning::kFewLanes, kOwn = kVectors * kVector<T>, kBits = 13;
  using Key = KeyOf<Compared<T>>;
  using P = std::conditional_t<kPairs<T>, uint32_t, Packed<Key>>;
  const int64_t row = blockIdx.x * int64_t(256 / kLanes) + threadIdx.x / kLanes;
  const Slice<T> slice(p, min(row, p.rows - 1));
  Held<T, kVectors, false> held(slice.x, 1, p.largest, slice.n, threadIdx.x % kLanes, kLanes);
  held.load();
  P own[kOwn];  // a key and below it what tells its index; 0 is none
#pragma unroll
  for (int i = 0; i < kOwn; ++i) {
    const int index = held.index(i / kVector<T>, i % kVector<T>);
    const Key key = key_of(held.element(i / kVector<T>, i % kVector<T>), p.largest);
    const P packed = P(key >> kLowestKeyBit<T>) << kBits | P((1 << kBits) - 1 - index);
    own[i] = index < 0 || index >= slice.n ? 0 : packed;
  }
  for (int place = 0; place < slice.k; ++place) {
    P most = own[0];
#pragma unroll
    for (int i = 1; i < kOwn; ++i) most = max(most, own[i]);
#pragma unroll
    for (int lane = kLanes / 2; lane > 0; lane /= 2) most = max(most, P(__shfl_xor_sync(0xffffffffu, most, lane)));
#pragma unroll
    for (int i = 0; i < kOwn; ++i) own[i] = own[i] == most ? 0 : own[i];
    if (place % kLanes == held.thread && row < p.rows) {
      slice.write(p, place, (1 << kBits) - 1 - static_cast<uint32_t>(most & ((1 << kBits) - 1)));
    }
  }
}

int round_up(int64_t value, int low, int high) {
  return static_cast<int>(std::bit_ceil<uint64_t>(std::clamp<int64_t>(value, low, high)));
}

// Elements that the first vector of a row may hold before the row begins.
template <class T>
int lead(const Problem<T>& p) {
  const bool aligned = is_aligned<kVector<T>>(p.in.size, {p.x}) && (p.slices == 1 || p.slice % kVector<T> == 0);
  return p.in.inner > 1 || aligned ? 0 : kVector<T> - 1;
}

// Whether a block is to take a long row tile by tile. Of 16-bit elements a row of 32768 is one tile: more are not
// faster.
template <class T>
constexpr bool kStreams = sizeof(T) == 4;

template <class T>
bool streams(const Problem<T>& p) {
  return kStreams<T> && p.in.inner == 1 && p.k <= Tuning::kStreamK && p.rows >= Tuning::kStreamRows;
}

template <class T>
void select(Problem<T>& p, Context& context) {
  using Key = KeyOf<Compared<T>>;
  const int held = p.slice + lead(p);
  if constexpr (sizeof(Key) == 4) {
    constexpr int kFewVectors = 32 / kVector<T>;
    if (p.in.inner == 1 && p.slices == 1 && p.sorted && p.k <= Tuning::kFewK &&
        held <= held_by<T>(Tuning::kFewLanes, kFewVectors)) {
      constexpr int kRows = 256 / Tuning::kFewLanes;
      const auto blocks = static_cast<unsigned>((p.rows + kRows - 1) / kRows);
      const auto start = [&](auto vectors) {
        launch(few_kernel<T, decltype(vectors)::value>, blocks, 256, 0, context, p);
      };
      if (held <= held_by<T>(Tuning::kFewLanes, kFewVectors / 4)) {
        start(std::integral_constant<int, kFewVectors / 4>());
      } else if (held <= held_by<T>(Tuning::kFewLanes, kFewVectors / 2)) {
        start(std::integral_constant<int, kFewVectors / 2>());
      } else {
        start(std::integral_constant<int, kFewVectors>());
      }
      return;
    }
  }
  if constexpr (kStreams<T>) {
    if (streams(p) && held > held_by<T>(Tuning::kStreamThreads, Tuning::kStreamLoads)) {
      p.capacity = round_up(8 * p.k, 1024, Tuning::kCapacity);
      const int64_t blocks =
          std::min<int64_t>(p.rows, int64_t(device_properties().multiprocessors) * Tuning::kStreamBlocks);
      launch(stream_kernel<T>, static_cast<unsigned>(blocks), Tuning::kStreamThreads, Desk<Key>::bytes(p.capacity),
             context, p);
      return;
    }
  }
  const bool warp = held <= held_by<T>(kWarp, Tuning::kLoads) && p.k <= Tuning::kWarpK &&
                    (held <= Tuning::kWarpAlone || p.rows > Tuning::kFewRows);
  const int wanted = std::max(warp ? 64 : 256, 8 * p.k);
  p.capacity = round_up(std::min(wanted, p.slice), p.k, Tuning::kCapacity);

  const auto start = [&](auto loads, auto by_warp) {
    constexpr int kLoads = decltype(loads)::value;
    constexpr bool kByWarp = decltype(by_warp)::value;
    const int threads = kByWarp ? kWarp * Tuning::kWarps
                                : round_up(std::max<int64_t>((held - 1) / held_by<T>(1, kLoads) + 1,
                                                             p.rows > Tuning::kFewRows ? p.capacity / 4 : p.capacity),
                                           Tuning::kMinThreads, Tuning::kMaxThreads);
    const int teams = kByWarp ? Tuning::kWarps : 1;
    const auto blocks = static_cast<unsigned>(std::min<int64_t>((p.rows + teams - 1) / teams, 1 << 30));
    // With a stride it is the memory that takes the time: a kernel for short rows of that kind would gain nothing.
    const auto kernel =
        p.in.inner > 1 ? select_kernel<T, Tuning::kLoads, true, kByWarp> : select_kernel<T, kLoads, false, kByWarp>;
    launch(kernel, blocks, threads, teams * Desk<Key>::bytes(p.capacity), context, p);
  };
  constexpr std::integral_constant<int, Tuning::kFewLoads> few;
  constexpr std::integral_constant<int, Tuning::kLoads> many;
  if (warp) {
    held <= held_by<T>(kWarp, few) ? start(few, std::true_type()) : start(many, std::true_type());
  } else {
    held <= held_by<T>(Tuning::kMaxThreads, few) ? start(few, std::false_type()) : start(many, std::false_type());
  }
}

// Elements of a slice of such rows: as many as a block holds, or fewer where there would not be blocks enough. What is
// taken tile by tile is cut only to have blocks enough.
template <class T>
int slice_of(const Problem<T>& p) {
  const int least = std::max(Tuning::kMinSlice, 32 * p.k);
  if (streams(p)) {
    const int64_t wanted = std::max<int64_t>(1, Tuning::kStreamBlocks * device_properties().multiprocessors / p.rows);
    const int64_t slice = std::max<int64_t>((p.in.size + wanted - 1) / wanted, least);
    return static_cast<int>((slice + kVector<T> - 1) / kVector<T> * kVector<T>);
  }
  int slice = static_cast<int>(held_by<T>(Tuning::kMaxThreads, Tuning::kLoads)) - (lead(p) > 0 ? kVector<T> : 0);
  while (p.rows * ((p.in.size + slice - 1) / slice) < Tuning::kSlices && slice > least) slice /= 2;
  return slice;
}

// --- transposing --------------------------------------------------------------------------------------------------

constexpr int kTile = 32;
constexpr int kTileRows = 8;

// [outer, size, inner] -> [outer, inner, size]
template <class T>
__global__ void __launch_bounds__(kTile* kTileRows)
    transpose(const T* from, T* to, int64_t outer, int64_t size, int64_t inner) {
  __shared__ T tile[kTile][kTile + 1];
  const int64_t across = (inner + kTile - 1) / kTile, down = (size + kTile - 1) / kTile;
  for (int64_t block = blockIdx.x; block < outer * across * down; block += gridDim.x) {
    const int64_t column = block % across * kTile, row = block / across % down * kTile;
    const int64_t offset = block / across / down * size * inner;
    for (int i = threadIdx.y; i < kTile; i += kTileRows) {
      if (row + i < size && column + threadIdx.x < inner) {
        tile[i][threadIdx.x] = from[offset + (row + i) * inner + column + threadIdx.x];
      }
    }
    __syncthreads();
    for (int i = threadIdx.y; i < kTile; i += kTileRows) {
      if (column + i < inner && row + threadIdx.x < size) {
        to[offset + (column + i) * size + row + threadIdx.x] = tile[threadIdx.x][i];
      }
    }
    __syncthreads();
  }
}

// --- sorting ------------------------------------------------------------------------------------------------------

// Keys in the order in which CUB sorts, and what they are keys of: element i of the rows that are sorted together.
template <class T, class Key>
__global__ void make_keys(const T* x, Rows in, int64_t first_row, int64_t count, bool largest, Key* keys,
                          uint32_t* elements) {
  for (int64_t i = blockIdx.x * int64_t(blockDim.x) + threadIdx.x; i < count; i += int64_t(gridDim.x) * blockDim.x) {
    const int64_t row = i / in.size;
    const T value = x[in.begin(first_row + row) + (i - row * in.size) * in.inner];
    keys[i] = ~key_of(compared(oriented(value, largest)), largest);
    elements[i] = static_cast<uint32_t>(i);
  }
}

template <class Key>
__global__ void rows_of(const uint32_t* elements, int64_t size, int64_t count, Key* rows) {
  for (int64_t i = blockIdx.x * int64_t(blockDim.x) + threadIdx.x; i < count; i += int64_t(gridDim.x) * blockDim.x) {
    rows[i] = static_cast<Key>(elements[i] / size);
  }
}

// The first k of each row, as keys to sort them by once more.
template <class Key>
__global__ void take_first(const uint32_t* elements, int64_t size, int64_t k, int64_t count, Key* keys,
                           uint32_t* taken) {
  for (int64_t i = blockIdx.x * int64_t(blockDim.x) + threadIdx.x; i < count; i += int64_t(gridDim.x) * blockDim.x) {
    const uint32_t element = elements[i / k * size + i % k];
    keys[i] = element;
    taken[i] = element;
  }
}

// elements: those of a row one after the other, `pitch` a row.
template <class T>
__global__ void write_first(const T* x, Rows in, Rows out, int64_t first_row, int64_t count, const uint32_t* elements,
                            int64_t pitch, T* values, int64_t* indices) {
  for (int64_t i = blockIdx.x * int64_t(blockDim.x) + threadIdx.x; i < count; i += int64_t(gridDim.x) * blockDim.x) {
    const int64_t row = i / out.size, place = i - row * out.size;
    const int64_t index = elements[row * pitch + place] - row * in.size;
    const int64_t to = out.begin(first_row + row) + place * out.inner;
    values[to] = x[in.begin(first_row + row) + index * in.inner];
    indices[to] = index;
  }
}

template <class T>
void sort_all(const Problem<T>& p, Context& context) {
  using Key = KeyOf<Compared<T>>;
  const int64_t n = p.in.size, k = p.out.size;
  const int64_t together = std::min(p.rows, std::max<int64_t>(1, Tuning::kSorted / n));
  const int64_t room = together * n;
  const auto memory = [&](size_t element) { return context.scratch(room * element); };
  SortBuffers<Key> buffers = {static_cast<Key*>(memory(sizeof(Key))), static_cast<Key*>(memory(sizeof(Key))),
                              static_cast<uint32_t*>(memory(4)), static_cast<uint32_t*>(memory(4))};
  constexpr int kThreads = 256;
  for (int64_t row = 0; row < p.rows; row += together) {
    const int64_t rows = std::min(together, p.rows - row);
    const int64_t count = rows * n, chosen = rows * k;
    launch(make_keys<T, Key>, grid_stride_blocks(count, kThreads), kThreads, 0, context, p.x, p.in, row, count,
           p.largest, buffers.keys, buffers.values);
    sort_pairs(buffers, count, 8 * sizeof(Key), context);
    if (rows > 1) {  // a stable sort: within its row each keeps its place
      launch(rows_of<Key>, grid_stride_blocks(count, kThreads), kThreads, 0, context, buffers.values, n, count,
             buffers.keys);
      sort_pairs(buffers, count, std::bit_width<uint64_t>(rows - 1), context);
    }
    int64_t pitch = n;
    if (!p.sorted) {
      // What is taken goes into the other buffers, and they become those that are sorted.
      launch(take_first<Key>, grid_stride_blocks(chosen, kThreads), kThreads, 0, context, buffers.values, n, k, chosen,
             buffers.other_keys, buffers.other_values);
      buffers = {buffers.other_keys, buffers.keys, buffers.other_values, buffers.values};
      sort_pairs(buffers, chosen, std::bit_width<uint64_t>(count - 1), context);
      pitch = k;
    }
    launch(write_first<T>, grid_stride_blocks(chosen, kThreads), kThreads, 0, context, p.x, p.in, p.out, row, chosen,
           buffers.values, pitch, p.values, p.indices);
  }
}

}  // namespace

template <class T>
void select_top_k_cuda(const SelectTopKArgs<T>& a, Context& context) {
  const int axis = static_cast<int>(a.axis < 0 ? a.axis + a.X.rank : a.axis);
  int64_t outer = 1, inner = 1;
  for (int i = 0; i < axis; ++i) outer *= a.X[i];
  for (int i = axis + 1; i < a.X.rank; ++i) inner *= a.X[i];
  const int64_t size = a.X[axis];
  const int64_t k = a.k ? *a.k : a.k_input.rank > 0 ? a.k_input[0] : size;

  Problem<T> p = {};
  p.x = a.x;
  p.in = {size, inner};
  p.rows = outer * inner;
  p.slices = 1;
  p.values = a.values;
  p.indices = a.indices;
  p.out = {k, inner};
  p.largest = a.largest;
  p.sorted = a.sorted;
  narrow(size);  // indices on the way are 32-bit

  const int64_t bytes = outer * size * inner * int64_t(sizeof(T));
  if (inner > 1 && size > 1 && bytes > Tuning::kCached) {
    T* turned = static_cast<T*>(context.scratch(bytes));
    const int64_t tiles = outer * ((size + kTile - 1) / kTile) * ((inner + kTile - 1) / kTile);
    launch(transpose<T>, static_cast<unsigned>(std::min<int64_t>(tiles, 1 << 30)), dim3(kTile, kTileRows), 0, context,
           a.x, turned, outer, size, inner);
    p.x = turned;
    p.in.inner = 1;
  }
  if (k > Tuning::kMaxK) {
    if constexpr (sizeof(KeyOf<Compared<T>>) == 4) {
      if (inner == 1 && size <= ShortRows<T>::kMost) {
        return sort_rows<T>(
            {a.x, a.values, a.indices, p.rows, static_cast<int>(size), static_cast<int>(k), a.largest, a.sorted},
            context);
      }
    }
    return sort_all(p, context);
  }

  p.k = static_cast<int>(k);
  while (p.in.size + lead(p) > held_by<T>(Tuning::kMaxThreads, Tuning::kLoads)) {
    Problem<T> part = p;
    part.slice = slice_of(p);
    if (part.slice >= p.in.size) break;
    part.slices = narrow((p.in.size + part.slice - 1) / part.slice);
    part.rows = p.rows * part.slices;
    part.sorted = false;
    const int64_t last = p.in.size - int64_t(part.slices - 1) * part.slice;
    const int64_t kept = int64_t(part.slices - 1) * p.k + std::min(last, k);
    part.out = {kept, 1};
    part.values = static_cast<T*>(context.scratch(p.rows * kept * sizeof(T)));
    part.picked = static_cast<int*>(context.scratch(p.rows * kept * sizeof(int)));
    select(part, context);
    p.x = part.values;
    p.map = part.picked;
    p.in = {kept, 1};
  }
  p.slice = static_cast<int>(p.in.size);
  select(p, context);
}

}  // namespace ortops
