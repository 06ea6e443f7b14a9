// Moves on CUDA: the output is written once, in vectors of 16 bytes that are aligned whatever the rows' lengths and
// offsets are. A vector that lies in one run of the source is read with two aligned loads, of which the wanted bytes
// are shifted out: rows begin at any byte, and loads by elements would take 8 instructions for what takes 2. The few
// vectors across the end of a run are broken: a block collects its own and shares them out in the end, an element a
// thread. Were they left to the thread that met them, almost every warp would have one, and wait for a thread that does
// alone what now takes the block one step.
//
// What the elements are read from is a `Source`, which says of an index of the output
//   whole(at, from)     whether the vector that begins there is one run, and where that lies in memory;
//   element(at, value)  the element; false where this launch has none;
//   kStep               how far apart in the source the elements of a run are: 1, 2 or -1. Where it is 0 there are no
//                       runs, and instead of `whole` there is
//   gather(at, value)   the vector, if it is in one row.
#include <algorithm>
#include <vector>

#include "core/cuda.h"
#include "device/divide.h"
#include "device/vector.cuh"
#include "gen/move.h"
#include "ops/move/map.h"

namespace ortops {
namespace {

struct MoveTuning {
  static constexpr int threads = 256;
  // A thread asks for all its vectors before it waits for the first. Two of them: 4 loads in flight a thread, which at
  // the 2048 threads of a multiprocessor is more than the memory's latency times its rate.
  static constexpr int vectors = 2;
};

template <class Index>
using DivisorOf = std::conditional_t<sizeof(Index) == 4, Divisor, WideDivisor>;

// --- reading at any alignment

struct Raw {
  Vector<uint32_t, 4> low, high;
};

// The two aligned 16 bytes that 16 bytes at `from` lie in, of which the last `unwanted` are not needed; nothing is read
// if not `inside`. Each holds at least one byte that is wanted, so neither reaches beyond the granule of an
// allocation's ends.
template <class T>
__device__ __forceinline__ Raw load_around(const T* from, bool inside, uint32_t unwanted) {
  const auto address = reinterpret_cast<uintptr_t>(from);
  const auto* words = reinterpret_cast<const uint32_t*>(address & ~uintptr_t(15));
  return {load<4, Reuse::constant>(words, inside),
          load<4, Reuse::constant>(words + 4, inside && address % 16 > unwanted)};
}

template <int N, class T>
__device__ __forceinline__ Vector<T, N> shift_out(const Raw& raw, const T* from) {
  const auto shift = static_cast<uint32_t>(reinterpret_cast<uintptr_t>(from) % 16);
  uint32_t words[8];
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    words[i] = raw.low[i];
    words[i + 4] = raw.high[i];
  }
#pragma unroll
  for (int i = 0; i < 6; ++i) words[i] = shift & 8 ? words[i + 2] : words[i];
  if constexpr (sizeof(T) < 8) {
#pragma unroll
    for (int i = 0; i < 5; ++i) words[i] = shift & 4 ? words[i + 1] : words[i];
  }
  Vector<uint32_t, 4> result;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    if constexpr (sizeof(T) < 4) {
      result[i] = __funnelshift_r(words[i], words[i + 1], shift % 4 * 8);
    } else {
      result[i] = words[i];
    }
  }
  return detail::bit_cast<Vector<T, N>>(result);
}

// Every other element of two vectors.
template <class T, int N>
__device__ __forceinline__ Vector<T, N> evens(const Vector<T, N>& low, const Vector<T, N>& high) {
  if constexpr (sizeof(T) < 4) {
    const auto a = detail::bit_cast<Vector<uint32_t, 4>>(low), b = detail::bit_cast<Vector<uint32_t, 4>>(high);
    constexpr uint32_t kBytes = sizeof(T) == 2 ? 0x5410 : 0x6420;
    return detail::bit_cast<Vector<T, N>>(
        Vector<uint32_t, 4>{__byte_perm(a[0], a[1], kBytes), __byte_perm(a[2], a[3], kBytes),
                            __byte_perm(b[0], b[1], kBytes), __byte_perm(b[2], b[3], kBytes)});
  } else {
    Vector<T, N> result;
#pragma unroll
    for (int i = 0; i < N; ++i) result[i] = i < N / 2 ? low[2 * i] : high[2 * i - N];
    return result;
  }
}

template <class T, int N>
__device__ __forceinline__ Vector<T, N> reversed(const Vector<T, N>& value) {
  if constexpr (sizeof(T) < 4) {
    const auto words = detail::bit_cast<Vector<uint32_t, 4>>(value);
    constexpr uint32_t kBytes = sizeof(T) == 2 ? 0x1032 : 0x0123;
    return detail::bit_cast<Vector<T, N>>(
        Vector<uint32_t, 4>{__byte_perm(words[3], 0, kBytes), __byte_perm(words[2], 0, kBytes),
                            __byte_perm(words[1], 0, kBytes), __byte_perm(words[0], 0, kBytes)});
  } else {
    Vector<T, N> result;
#pragma unroll
    for (int i = 0; i < N; ++i) result[i] = value[N - 1 - i];
    return result;
  }
}

// --- the kernel

template <class Source>
constexpr int kVectors = Source::kStep == 0 ? 1 : MoveTuning::vectors;

// y is aligned to a vector, of which the output begins at element `lead`.
template <class T, class Index, class Source>
__global__ void __launch_bounds__(MoveTuning::threads)
    move_vectors(const __grid_constant__ Source source, T* y, Index count, int lead) {
  constexpr int N = kWidth<T>, kThreads = MoveTuning::threads, kOwn = kVectors<Source>, kStep = Source::kStep;
  constexpr int kRaw = kStep == 2 ? 2 : 1;
  __shared__ uint16_t broken[kThreads * kOwn];
  __shared__ int broken_count;
  const int thread = threadIdx.x;
  if (thread == 0) broken_count = 0;
  __syncthreads();

  const Index begin = Index(blockIdx.x) * (kThreads * kOwn * N) - lead;  // of the block
  const T* from[kOwn];
  bool whole[kOwn];
  Raw raw[kOwn][kRaw];
  Vector<T, N> value[kOwn];
#pragma unroll
  for (int k = 0; k < kOwn; ++k) {
    const int vector = k * kThreads + thread;
    const Index at = begin + vector * N;
    whole[k] = at >= 0 && count - at >= N;
    if constexpr (kStep == 0) {
      whole[k] = whole[k] && source.gather(at, value[k]);
    } else {
      from[k] = nullptr;
      whole[k] = whole[k] && source.whole(at, from[k]);
#pragma unroll
      for (int i = 0; i < kRaw; ++i) {  // behind the last element that is wanted lie kRaw - 1 of no interest
        const bool last = i == kRaw - 1;
        raw[k][i] = load_around(from[k] + i * N, whole[k], last ? i * sizeof(T) : 0);
      }
    }
    if (!whole[k] && at < count) broken[atomicAdd(&broken_count, 1)] = static_cast<uint16_t>(vector);
  }
  __syncthreads();
#pragma unroll
  for (int k = 0; k < kOwn; ++k) {
    if (!whole[k]) continue;
    if constexpr (kStep != 0) value[k] = shift_out<N>(raw[k][0], from[k]);
    if constexpr (kStep == 2) value[k] = evens(value[k], shift_out<N>(raw[k][1], from[k]));
    if constexpr (kStep == -1) value[k] = reversed(value[k]);
    store(y + lead + begin + (k * kThreads + thread) * N, value[k]);
  }
  const int elements = broken_count * N;
  for (int i = thread; i < elements; i += kThreads) {
    const Index at = begin + broken[i / N] * N + i % N;
    T element;
    if (at >= 0 && at < count && source.element(at, element)) y[lead + at] = element;
  }
}

template <class Index, class T, class Source>
void start(const Source& source, T* y, int64_t count, Context& context) {
  const int lead = static_cast<int>(reinterpret_cast<uintptr_t>(y) % 16 / sizeof(T));
  constexpr int64_t kBlock = MoveTuning::threads * kVectors<Source> * kWidth<T>;
  launch(move_vectors<T, Index, Source>, narrow((count + lead + kBlock - 1) / kBlock), MoveTuning::threads, 0, context,
         source, y - lead, static_cast<Index>(count), lead);
}

// Whether indices of this many elements, and of what a block of threads adds to them, are 32-bit.
bool is_short(int64_t count) { return count < (int64_t(1) << 31) - (1 << 20); }

// --- maps

template <class Index>
struct DeviceAxis {
  DivisorOf<Index> size, step;
  Index first, extent, stride, begin, end;
};

// Of kinds `unit`, `pairs` and `backwards` no axis has a step or goes on, and the innermost stride is 1, 2 or -1. Of
// `runs` it is 1 as well, but axes may go on, and others than the innermost have steps.
enum class Kind { unit, pairs, backwards, runs, general };

template <class Index>
struct DeviceMap {
  int rank;
  Beyond beyond;
  bool unit;  // whether neighbours in [0, extent) are neighbours in the source
  Index base;
  DeviceAxis<Index> axes[kMaxRank];  // innermost first

  explicit DeviceMap(const Map& map) : rank(map.rank), beyond(map.beyond) {
    unit = map.inner().stride == 1 && map.inner().step == 1;
    base = static_cast<Index>(map.base);
    for (int i = 0; i < rank; ++i) {
      const MapAxis& axis = map.axes[rank - 1 - i];
      axes[i] = {DivisorOf<Index>(axis.size),     DivisorOf<Index>(axis.step),     static_cast<Index>(axis.first),
                 static_cast<Index>(axis.extent), static_cast<Index>(axis.stride), static_cast<Index>(axis.begin),
                 static_cast<Index>(axis.end)};
    }
  }

  __device__ __forceinline__ Index width() const { return static_cast<Index>(axes[0].size.divisor); }

  // Calls f(axis, t) for each axis but the innermost; stops where it gives false. Few maps have more than 3 axes, and
  // those are addressed by constants.
  template <class F>
  __device__ __forceinline__ bool for_outer(Index row, F&& f) const {
    const auto visit = [&](int i) {
      Index index = row;
      if (i < rank - 1) {
        row = static_cast<Index>(axes[i].size.quotient(index));
        index -= row * static_cast<Index>(axes[i].size.divisor);
      }
      return f(axes[i], index - axes[i].first);
    };
#pragma unroll
    for (int i = 1; i < 3; ++i) {
      if (i >= rank) return true;
      if (!visit(i)) return false;
    }
    for (int i = 3; i < rank; ++i) {
      if (!visit(i)) return false;
    }
    return true;
  }

  // Turns t into an element of the source's axis, if there is one.
  template <Kind kKind>
  __device__ __forceinline__ bool resolve(const DeviceAxis<Index>& axis, Index& t) const {
    if constexpr (kKind == Kind::runs || kKind == Kind::general) {
      if (t < 0 || t >= axis.extent) {
        if (t < -axis.begin || t >= axis.extent + axis.end) return false;
        t = static_cast<Index>(go_on(beyond, t, axis.extent));
      }
      const Index quotient = static_cast<Index>(axis.step.quotient(t));
      if (quotient * static_cast<Index>(axis.step.divisor) != t) return false;
      t = quotient;
      return true;
    } else {
      return t >= 0 && t < axis.extent;
    }
  }

  // Where a row of the output has its t = 0 in the source.
  template <Kind kKind>
  __device__ __forceinline__ bool locate(Index row, Index& offset) const {
    offset = base;
    return for_outer(row, [&](const DeviceAxis<Index>& axis, Index t) {
      if (!resolve<kKind>(axis, t)) return false;
      offset += t * axis.stride;
      return true;
    });
  }
};

template <class T, class Index, Kind kKind>
struct Mapped {
  static constexpr int kStep = kKind == Kind::general     ? 0
                               : kKind == Kind::pairs     ? 2
                               : kKind == Kind::backwards ? -1
                                                          : 1;
  DeviceMap<Index> map;
  const T* x;
  T fill;

  __device__ __forceinline__ bool whole(Index at, const T*& from) const {
    const DeviceAxis<Index>& inner = map.axes[0];
    const Index row = static_cast<Index>(inner.size.quotient(at));
    const Index t = at - row * map.width() - inner.first;
    Index offset;
    if (t < 0 || t + kWidth<T> > inner.extent || !map.template locate<kKind>(row, offset)) return false;
    from = x + offset + (kStep == -1 ? 1 - kWidth<T> - t : t * kStep);
    return true;
  }

  template <int N>
  __device__ __forceinline__ bool gather(Index at, Vector<T, N>& value) const {
    const DeviceAxis<Index>& inner = map.axes[0];
    const Index row = static_cast<Index>(inner.size.quotient(at));
    const Index column = at - row * map.width();
    if (column + N > map.width()) return false;
    Index offset;
    const bool inside = map.template locate<kKind>(row, offset);
#pragma unroll
    for (int i = 0; i < N; ++i) {
      Index t = column + i - inner.first;
      value[i] = fill;
      if (inside && map.template resolve<kKind>(inner, t)) value[i] = x[offset + t * inner.stride];
    }
    return true;
  }

  __device__ __forceinline__ bool element(Index at, T& value) const {
    const DeviceAxis<Index>& inner = map.axes[0];
    const Index row = static_cast<Index>(inner.size.quotient(at));
    Index t = at - row * map.width() - inner.first, offset;
    const bool inside = map.template resolve<kKind>(inner, t) && map.template locate<kKind>(row, offset);
    value = inside ? x[offset + t * inner.stride] : fill;
    return true;
  }
};

template <class T>
void move(const Map& map, const T* x, int64_t source_size, T* y, T fill, Context& context) {
  const int64_t count = map.rows() * map.inner().size;
  bool plain = map.beyond == Beyond::nothing;
  for (int axis = 0; axis < map.rank; ++axis) plain = plain && map.axes[axis].step == 1;
  const auto with = [&](auto index) {
    using Index = decltype(index);
    const DeviceMap<Index> device(map);
    if (plain && device.unit) {
      start<Index>(Mapped<T, Index, Kind::unit>{device, x, fill}, y, count, context);
    } else if (plain && map.inner().stride == 2) {
      start<Index>(Mapped<T, Index, Kind::pairs>{device, x, fill}, y, count, context);
    } else if (plain && map.inner().stride == -1) {
      start<Index>(Mapped<T, Index, Kind::backwards>{device, x, fill}, y, count, context);
    } else if (device.unit) {
      start<Index>(Mapped<T, Index, Kind::runs>{device, x, fill}, y, count, context);
    } else {
      start<Index>(Mapped<T, Index, Kind::general>{device, x, fill}, y, count, context);
    }
  };
  is_short(count) && is_short(source_size) ? with(int32_t()) : with(int64_t());
}

// --- the gradient of padding

// Of the places along an axis where copies of its element t lie, the element's own first: how many, and the k-th.
template <class Index>
__device__ __forceinline__ Index count_copies(const DeviceAxis<Index>& axis, Beyond beyond, Index t) {
  const Index n = axis.extent;
  switch (beyond) {
    case Beyond::reflect:
      return 1 + (t >= 1 && t <= axis.begin) + (t <= n - 2 && t >= n - 1 - axis.end);
    case Beyond::circular:
      return 1 + (t >= n - axis.begin) + (t < axis.end);
    default:
      return 1 + (t == 0 ? axis.begin : 0) + (t == n - 1 ? axis.end : 0);
  }
}

template <class Index>
__device__ __forceinline__ Index copy(const DeviceAxis<Index>& axis, Beyond beyond, Index t, Index k) {
  const Index n = axis.extent;
  if (k == 0) return t;
  switch (beyond) {
    case Beyond::reflect:
      return k == 1 && t >= 1 && t <= axis.begin ? -t : 2 * (n - 1) - t;
    case Beyond::circular:
      return k == 1 && t >= n - axis.begin ? t - n : t + n;
    default:
      if (t == 0) return k <= axis.begin ? -k : n - 1 + (k - axis.begin);
      return n - 1 + k;
  }
}

template <class T, class Index>
struct Copies {
  static constexpr int kStep = 1;
  DeviceMap<Index> map;
  const T* d_y;

  // Whether none of the vector's elements has a copy.
  __device__ __forceinline__ bool whole(Index at, const T*& from) const {
    const DeviceAxis<Index>& inner = map.axes[0];
    const Index row = static_cast<Index>(inner.size.quotient(at));
    const Index t = at - row * map.width() - inner.first;
    if (!map.unit || t <= inner.begin || t <= inner.end ||
        t + kWidth<T> + max(inner.begin, inner.end) >= inner.extent) {
      if (t < 0 || t + kWidth<T> > inner.extent || inner.begin || inner.end) return false;
    }
    Index offset = map.base;
    const bool alone = map.for_outer(row, [&](const DeviceAxis<Index>& axis, Index t) {
      if (t < 0 || t >= axis.extent || count_copies(axis, map.beyond, t) != 1) return false;
      offset += t * axis.stride;
      return true;
    });
    from = d_y + offset + t;
    return alone;
  }

  // Every combination of copies along the axes, the innermost first.
  __device__ __forceinline__ bool element(Index at, T& value) const {
    const DeviceAxis<Index>& inner = map.axes[0];
    const Index row = static_cast<Index>(inner.size.quotient(at));
    const Index t0 = at - row * map.width() - inner.first;
    const auto for_axes = [&](auto&& f) { return f(inner, t0) && map.for_outer(row, f); };
    Index combinations = 1, own = map.base;
    const bool inside = for_axes([&](const DeviceAxis<Index>& axis, Index t) {
      if (t < 0 || t >= axis.extent) return false;
      combinations *= count_copies(axis, map.beyond, t);
      own += t * axis.stride;
      return true;
    });
    float total = inside ? to_float(d_y[own]) : 0.f;
    for (Index combination = 1; inside && combination < combinations; ++combination) {
      Index offset = map.base, rest = combination;
      for_axes([&](const DeviceAxis<Index>& axis, Index t) {
        const Index count = count_copies(axis, map.beyond, t);
        Index k = count == 1 ? 0 : rest;
        if (count > 1 && rest >= count) k = rest % count;  // where further axes have copies too
        if (count > 1) rest = rest < count ? 0 : rest / count;
        offset += copy(axis, map.beyond, t, k) * axis.stride;
        return true;
      });
      total += to_float(d_y[offset]);
    }
    value = from_float<T>(total);
    return true;
  }
};

// --- concatenation

template <class T, class Index>
struct Pieces {
  // As many as make a parameter of 2 KiB; a kernel can have 4.
  static constexpr int kMost = 128;
  static constexpr int kStep = 1;

  DivisorOf<Index> width;  // of the output's rows
  int count = 0;
  int half = 0;             // the largest power of 2 below count
  Index begins[kMost + 1];  // in each row; the last is where the last piece ends
  const T* data[kMost];     // of each piece, the element that would lie at column 0 of row 0

  __device__ __forceinline__ int find(Index column) const {
    int piece = 0;
    for (int step = half; step > 0; step /= 2) {
      if (piece + step < count && begins[piece + step] <= column) piece += step;
    }
    return piece;
  }
  __device__ __forceinline__ const T* row_of(int piece, Index row) const {
    return data[piece] + row * (begins[piece + 1] - begins[piece]);
  }

  __device__ __forceinline__ bool whole(Index at, const T*& from) const {
    const Index row = static_cast<Index>(width.quotient(at));
    const Index column = at - row * static_cast<Index>(width.divisor);
    const int piece = find(column);
    if (column < begins[piece] || column + kWidth<T> > begins[piece + 1]) return false;
    from = row_of(piece, row) + column;
    return true;
  }

  __device__ __forceinline__ bool element(Index at, T& value) const {
    const Index row = static_cast<Index>(width.quotient(at));
    const Index column = at - row * static_cast<Index>(width.divisor);
    const int piece = find(column);
    if (column < begins[piece] || column >= begins[piece + 1]) return false;
    value = row_of(piece, row)[column];
    return true;
  }
};

template <class Index, class T>
void concatenate(const Joined<T>& joined, T* y, Context& context) {
  // Beyond kMost inputs there are more launches, each of which leaves alone what is not of its own.
  using Source = Pieces<T, Index>;
  for (size_t first = 0; first < joined.pieces.size(); first += Source::kMost) {
    Source source;
    source.width = DivisorOf<Index>(joined.width);
    source.count = static_cast<int>(std::min<size_t>(Source::kMost, joined.pieces.size() - first));
    for (int step = 1; step < source.count; step *= 2) source.half = step;
    for (int i = 0; i < source.count; ++i) {
      const auto& piece = joined.pieces[first + i];
      source.begins[i] = static_cast<Index>(piece.end - piece.width);
      source.begins[i + 1] = static_cast<Index>(piece.end);
      source.data[i] = piece.data - (piece.end - piece.width);
    }
    start<Index>(source, y, joined.rows * joined.width, context);
  }
}

}  // namespace

template <class T>
void constant_pad_cuda(const ConstantPadArgs<T>& a, Context& context) {
  move(pad_map(a.X, a), a.x, a.X.size(), a.y, element_bits<T>(a.T_type, a.value), context);
}

template <class T>
void pad_gradient_cuda(const PadGradientArgs<T>& a, Context& context) {
  const Map map = pad_gradient_map(a.Y, a);
  const int64_t count = map.rows() * map.inner().size;
  const auto with = [&](auto index) {
    using Index = decltype(index);
    start<Index>(Copies<T, Index>{DeviceMap<Index>(map), a.d_y}, a.d_x, count, context);
  };
  is_short(count) && is_short(a.Y.size()) ? with(int32_t()) : with(int64_t());
}

template <class T>
void strided_slice_cuda(const StridedSliceArgs<T>& a, Context& context) {
  move(slice_map(a.X, a), a.x, a.X.size(), a.y, T(), context);
}

template <class T>
void strided_slice_gradient_cuda(const StridedSliceGradientArgs<T>& a, Context& context) {
  move(slice_gradient_map(a.Y, a.X, a), a.d_y, a.Y.size(), a.d_x, T(), context);
}

template <class T>
void concatenate_cuda(const ConcatenateArgs<T>& a, Context& context) {
  const Joined<T> joined(a.xs, a.X, a.axis);
  if (is_short(joined.rows * joined.width)) {
    concatenate<int32_t>(joined, a.y, context);
  } else {
    concatenate<int64_t>(joined, a.y, context);
  }
}

template <class T>
void concatenate_gradient_cuda(const ConcatenateGradientArgs<T>& a, Context& context) {
  move(part_map(a.Y, a.X, a.axis, a.index), a.d_y, a.Y.size(), a.d_x, T(), context);
}

}  // namespace ortops
