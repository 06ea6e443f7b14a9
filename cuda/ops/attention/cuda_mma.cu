// Attention in 16-bit floats on tensor cores, one kernel and nothing besides: made for sequences of a few hundred,
// where launches and latency are the cost, and what is left where cuDNN is missing.
//
// Each warp keeps 16 queries in registers, as one operand of the first product (FlashAttention-2; Dao, 2023). Keys and
// values go through shared memory a tile at a time, the next tile being copied while this one is used; lines have 16
// bytes more than they hold, which puts the 8 rows of a matrix load in different banks. Scores stay where the first
// product leaves them: rounded, they are the other operand of the second. So a weight has the error of its rounding,
// 2^-11 (bfloat16: 2^-8) of itself, besides what the general kernel has.
//
// Boolean masks that are the same for all queries (padding) are read once a block, into bits in shared memory, while
// the first tile is on its way; tiles of which no key is kept are left out from then on. Other masks are read element
// by element.
#include <algorithm>
#include <cfloat>
#include <climits>

#include "device/mma.cuh"
#include "ops/attention/paths.h"

namespace ortops {
namespace {

using attention::MaskKind;
using attention::Problem;

constexpr int kWarp = 32;
constexpr int kMaxWarps = 8;
constexpr int kRows = 16;   // queries of a warp
constexpr int kStages = 2;  // of tiles: one that is used, one that is on its way
constexpr int64_t kMaxSize = 128;
constexpr int64_t kMaxKeyBits = 64 * 1024;  // 8 KiB beside the tiles; a longer mask is read element by element
constexpr float kLog2E = 1.44269504f;

// What depends on the head size, which is rounded up to kSize. Blocks a multiprocessor: what the registers allow (not
// measured).
template <int kSize>
struct Tile {
  static constexpr int kKeys = kSize > 64 ? 32 : 64;
  static constexpr int kLine = kSize + 8;
  static constexpr int kBytes = kStages * 2 * kKeys * kLine * 2;
  static constexpr int kBlocks = kSize == 32 ? 3 : kSize == 64 ? 2 : 1;
  static_assert(kMaxWarps * kRows <= kStages * 2 * kKeys, "the result passes through the same memory");
};

__device__ __forceinline__ float quad_max(float value) {
  value = fmaxf(value, __shfl_xor_sync(0xffffffffu, value, 1));
  return fmaxf(value, __shfl_xor_sync(0xffffffffu, value, 2));
}
__device__ __forceinline__ float quad_sum(float value) {
  value += __shfl_xor_sync(0xffffffffu, value, 1);
  return value + __shfl_xor_sync(0xffffffffu, value, 2);
}

// The lowest `count` bits.
__device__ __forceinline__ uint32_t lowest(int count) { return count <= 0 ? 0 : ~0u >> (kWarp - min(count, kWarp)); }

// kKeyMask: the mask is absent, or boolean and the same for all queries.
template <class T, int kSize, bool kKeyMask>
__global__ void __launch_bounds__(kMaxWarps* kWarp, Tile<kSize>::kBlocks)
    attend(const Problem p, int tiles, float scale) {
  constexpr int kKeys = Tile<kSize>::kKeys;
  constexpr int kLine = Tile<kSize>::kLine;
  constexpr int kVectors = kSize / 8;
  extern __shared__ uint4 memory[];
  using Lines = T[kKeys][kLine];
  Lines* const key_lines = reinterpret_cast<Lines*>(memory);
  Lines* const value_lines = key_lines + kStages;
  uint32_t* const key_bits = reinterpret_cast<uint32_t*>(value_lines + kStages);  // of the keys that the mask keeps

  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp, threads = blockDim.x;
  const int g = lane / 4, t = lane % 4;
  const int queries = static_cast<int>(p.queries), keys = static_cast<int>(p.keys);
  const int size = static_cast<int>(p.size), value_size = static_cast<int>(p.value_size);
  const int tile = tiles - 1 - static_cast<int>(blockIdx.x % tiles);  // of causal ones, the longest first
  const unsigned sequence = blockIdx.x / tiles, heads = static_cast<unsigned>(p.heads);  // 64-bit divisions are slow
  const int64_t batch = sequence / heads, head = sequence % heads;
  const int64_t kv_head = static_cast<unsigned>(head) / static_cast<unsigned>(p.group);
  const T* query = static_cast<const T*>(p.query) + batch * p.query_steps.batch + head * p.query_steps.head;
  const T* key = static_cast<const T*>(p.key) + batch * p.key_steps.batch + kv_head * p.key_steps.head;
  const T* value = static_cast<const T*>(p.value) + batch * p.value_steps.batch + kv_head * p.value_steps.head;
  const int64_t mask_offset = batch * p.mask_steps[0] + head * p.mask_steps[1];

  const int block_rows = threads / kWarp * kRows;
  const int first_row = tile * block_rows + warp * kRows;
  const int rows[2] = {first_row + g, first_row + g + 8};
  const auto visible_keys = [&](int q) { return static_cast<int>(attention::visible_keys(q, p.diagonal, p.keys)); };
  const int end = visible_keys(min((tile + 1) * block_rows, queries) - 1);
  const int warp_end = first_row < queries ? visible_keys(min(first_row + kRows, queries) - 1) : 0;

  const auto copy_tile = [&](int first_key, int stage) {
    if (first_key < end) {
      for (int i = threadIdx.x; i < kKeys * kVectors; i += threads) {
        const int k = i / kVectors, c = i % kVectors * 8;
        const bool inside = first_key + k < keys;
        const int64_t from = inside ? first_key + k : 0;
        const bool key_inside = inside && c < size, value_inside = inside && c < value_size;
        copy_async(&key_lines[stage][k][c], key + (key_inside ? from * p.key_steps.position + c : 0), key_inside);
        copy_async(&value_lines[stage][k][c], value + (value_inside ? from * p.value_steps.position + c : 0),
                   value_inside);
      }
    }
    commit_copies();
  };
  copy_tile(0, 0);  // whatever the mask says of it: nearly always it keeps some of the first keys

  uint32_t q[kSize / 16][4];
#pragma unroll
  for (int i = 0; i < kSize / 16; ++i) {
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      const int row = rows[j % 2], c = i * 16 + j / 2 * 8 + t * 2;
      q[i][j] =
          row < queries && c < size ? *reinterpret_cast<const uint32_t*>(query + row * p.query_steps.position + c) : 0;
    }
  }

  const bool masked = kKeyMask && p.mask_kind != MaskKind::none;
  if (masked) {
    const bool* mask = static_cast<const bool*>(p.mask) + mask_offset;
    for (int word = warp; word < (end + kKeys - 1) / kKeys * (kKeys / kWarp); word += threads / kWarp) {
      const int k = word * kWarp + lane;
      const uint32_t bits = __ballot_sync(0xffffffffu, k < keys && mask[k * p.mask_steps[3]]);
      if (lane == 0) key_bits[word] = bits;
    }
    __syncthreads();
  }
  // The first tile from there on of which the mask keeps a key.
  const auto next_tile = [&](int first_key) {
    const auto is_kept = [&] {
      uint32_t any = 0;
#pragma unroll
      for (int i = 0; i < kKeys / kWarp; ++i) any |= key_bits[first_key / kWarp + i];
      return any != 0;
    };
    while (masked && first_key < end && !is_kept()) first_key += kKeys;
    return first_key;
  };

  float top[2] = {-INFINITY, -INFINITY}, sum[2] = {};
  float result[kSize / 8][4] = {};
  int first_key = 0, stage = 0;
  int next_key = next_tile(kKeys);
  copy_tile(next_key, 1);
  const auto advance = [&] {
    __syncthreads();
    first_key = next_key;
    next_key = next_tile(next_key + kKeys);
    copy_tile(next_key, stage);
    stage ^= 1;
  };
  for (; first_key < end; advance()) {
    wait_for_copies<kStages - 1>();
    __syncthreads();
    if (first_key >= warp_end) continue;  // causal: all of it lies behind this warp's queries

    float scores[kKeys / 8][4] = {};
#pragma unroll
    for (int n = 0; n < kKeys / 8; ++n) {
#pragma unroll
      for (int i = 0; i < kSize / 16; i += 2) {
        uint32_t b[4];
        load_matrices(b, &key_lines[stage][n * 8 + lane % 8][i * 16 + lane / 8 * 8]);
        mma<T>(scores[n], q[i], b[0], b[1]);
        mma<T>(scores[n], q[i + 1], b[2], b[3]);
      }
    }

    // From here on a score's exponential is 2^(score * factor).
    const float factor = kKeyMask ? scale : 1.0f;
    if constexpr (kKeyMask) {
      uint32_t kept[kKeys / kWarp];
      bool all_kept = first_key + kKeys <= visible_keys(first_row);
#pragma unroll
      for (int i = 0; i < kKeys / kWarp; ++i) {
        kept[i] = masked ? key_bits[first_key / kWarp + i] : ~0u;
        all_kept = all_kept && kept[i] == ~0u;
      }
      if (!all_kept) {
#pragma unroll
        for (int n = 0; n < kKeys / 8; ++n) {
#pragma unroll
          for (int j = 0; j < 4; ++j) {
            const int word = n / 4, before = first_key + word * kWarp;
            const uint32_t bits = (kept[word] & lowest(visible_keys(rows[j / 2]) - before)) >> (t * 2);
            if (!(bits >> (n % 4 * 8 + j % 2) & 1)) scores[n][j] = -INFINITY;
          }
        }
      }
    } else {
#pragma unroll
      for (int n = 0; n < kKeys / 8; ++n) {
#pragma unroll
        for (int j = 0; j < 4; ++j) {
          const int row = rows[j / 2], k = first_key + n * 8 + t * 2 + j % 2;
          float bias = -INFINITY;
          if (row < queries && k < visible_keys(rows[j / 2])) {
            bias = attention::mask_value<T>(p, mask_offset + row * p.mask_steps[2] + k * p.mask_steps[3]) * kLog2E;
          }
          scores[n][j] = bias == -INFINITY ? bias : scores[n][j] * scale + bias;
        }
      }
    }

    float base[2], shrink[2];
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      float largest = top[i];
#pragma unroll
      for (int n = 0; n < kKeys / 8; ++n) largest = fmaxf(largest, fmaxf(scores[n][i * 2], scores[n][i * 2 + 1]));
      largest = quad_max(largest);
      // Rounded by itself, not fused with the subtraction: of large scores the old and the new base would differ in
      // nothing else. No key so far: all below are 2^-inf.
      const auto base_of = [&](float score) { return score == -INFINITY ? 0.0f : __fmul_rn(score, factor); };
      base[i] = base_of(largest);
      shrink[i] = top[i] == -INFINITY ? 0.0f : fast_exp2(base_of(top[i]) - base[i]);
      top[i] = largest;
      sum[i] *= shrink[i];
    }
#pragma unroll
    for (int n = 0; n < kKeys / 8; ++n) {
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        scores[n][j] = fast_exp2(fmaf(scores[n][j], factor, -base[j / 2]));
        sum[j / 2] += scores[n][j];
      }
    }
#pragma unroll
    for (int n = 0; n < kSize / 8; ++n) {
#pragma unroll
      for (int j = 0; j < 4; ++j) result[n][j] *= shrink[j / 2];
    }
#pragma unroll
    for (int i = 0; i < kKeys / 16; ++i) {
      const uint32_t weights[4] = {
          pack<T>(scores[2 * i][0], scores[2 * i][1]), pack<T>(scores[2 * i][2], scores[2 * i][3]),
          pack<T>(scores[2 * i + 1][0], scores[2 * i + 1][1]), pack<T>(scores[2 * i + 1][2], scores[2 * i + 1][3])};
#pragma unroll
      for (int n = 0; n < kSize / 8; n += 2) {
        uint32_t b[4];
        load_matrices_transposed(b, &value_lines[stage][i * 16 + lane % 16][n * 8 + lane / 16 * 8]);
        mma<T>(result[n], weights, b[0], b[1]);
        mma<T>(result[n + 1], weights, b[2], b[3]);
      }
    }
  }

  // Through shared memory, so that a lane writes 16 bytes at once; nobody copies into it any more.
  T(*const lines)[kLine] = reinterpret_cast<T(*)[kLine]>(memory) + warp * kRows;
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const float total = quad_sum(sum[i]);
    const float inverse = total == 0 ? 0.0f : 1 / total;
#pragma unroll
    for (int n = 0; n < kSize / 8; ++n) {
      *reinterpret_cast<uint32_t*>(&lines[g + i * 8][n * 8 + t * 2]) =
          pack<T>(result[n][i * 2] * inverse, result[n][i * 2 + 1] * inverse);
    }
  }
  __syncwarp();
  T* y = static_cast<T*>(p.y) + batch * p.y_steps.batch + head * p.y_steps.head;
#pragma unroll
  for (int i = lane; i < kRows * kVectors; i += kWarp) {
    const int row = i / kVectors, c = i % kVectors * 8;
    if (first_row + row < queries && c < value_size) {
      *reinterpret_cast<uint4*>(y + (first_row + row) * p.y_steps.position + c) =
          *reinterpret_cast<const uint4*>(&lines[row][c]);
    }
  }
}

// Tiles of up to 128 queries, as many as give the chip two blocks a multiprocessor, all of about the same size.
int64_t query_tiles(const Problem& p) {
  const int64_t enough = 2 * device_properties().multiprocessors;
  int64_t rows = kMaxWarps * kRows;
  while (rows > 2 * kRows && p.batch * p.heads * ((p.queries + rows - 1) / rows) < enough) rows /= 2;
  return (p.queries + rows - 1) / rows;
}

template <class T, int kSize, bool kKeyMask>
bool attend_tiles(const Problem& p, Context& context) {
  const int64_t tiles = query_tiles(p);
  const int64_t tile_rows = (p.queries + tiles - 1) / tiles;
  const int64_t warps = (tile_rows + kRows - 1) / kRows;
  const int64_t blocks = p.batch * p.heads * tiles;
  if (blocks > INT_MAX) return false;
  // A scale of 0 would make NaN of -inf.
  const float scale = std::max(p.scale * kLog2E, FLT_MIN);
  constexpr int64_t kKeys = Tile<kSize>::kKeys;
  const int64_t bits = kKeyMask && p.mask ? (p.keys + kKeys - 1) / kKeys * kKeys : 0;
  launch(attend<T, kSize, kKeyMask>, static_cast<unsigned>(blocks), static_cast<unsigned>(warps * kWarp),
         Tile<kSize>::kBytes + bits / 8, context, p, static_cast<int>(tiles), scale);
  return true;
}

template <class T, int kSize>
bool attend_masked(const Problem& p, Context& context) {
  const bool key_mask = p.mask_kind == MaskKind::none ||
                        (p.mask_kind == MaskKind::boolean && p.mask_steps[2] == 0 && p.keys <= kMaxKeyBits);
  return key_mask ? attend_tiles<T, kSize, true>(p, context) : attend_tiles<T, kSize, false>(p, context);
}

template <class T>
bool attend_sized(const Problem& p, Context& context) {
  const int64_t size = std::max(p.size, p.value_size);
  if (size <= 32) return attend_masked<T, 32>(p, context);
  if (size <= 64) return attend_masked<T, 64>(p, context);
  return attend_masked<T, 128>(p, context);
}

}  // namespace

bool attention::attend_mma(const Problem& p, Context& context) {
  if (!is_vectorised(p) || std::max(p.size, p.value_size) > kMaxSize) return false;
  return p.type == Type::float16 ? attend_sized<float16>(p, context) : attend_sized<bfloat16>(p, context);
}

}  // namespace ortops
