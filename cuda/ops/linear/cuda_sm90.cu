// y = activation(x weight + bias) in one kernel for Hopper, in 16-bit types: for the activations that cuBLASLt's
// epilogue lacks. The accumulators get bias and activation in float32 before they are rounded, and y is written once:
// no second pass (at 8192x2048x8192 it would cost 15 % of the product), no rounding in between.
//
// The product is CUTLASS's: TMA loads, asynchronous tensor-core instructions, and a persistent grid in which two groups
// of warps take turns ("ping-pong"): one computes the activation of its tile while the other's product keeps the tensor
// cores busy.
#include <cutlass/cutlass.h>
#include <cutlass/gemm/device/gemm_universal_adapter.h>
#include <cute/tensor.hpp>
#include <cutlass/epilogue/collective/collective_builder.hpp>
#include <cutlass/gemm/collective/collective_builder.hpp>
#include <cutlass/gemm/kernel/gemm_universal.hpp>

#include <limits>

#include "core/cuda.h"
#include "device/vector.cuh"
#include "ops/linear/cuda_sm90.h"
#include "ops/linear/math.h"

namespace ortops::linear {
namespace {

using Activation = LinearAttributes::Activation;

// How the kernel is laid out: the part of y that a group of warps makes at a time, its depth, the thread blocks that
// share loads, and how many tiles wide a stripe is that stays in the L2 cache. Chosen by reasoning so far;
// tests/gpu/linear_tuning.cu measures it against others.
struct Tuning {
  using Tile = cute::Shape<cute::_128, cute::_128, cute::_64>;
  using Cluster = cute::Shape<cute::_2, cute::_1, cute::_1>;
  using Mainloop = cutlass::gemm::KernelTmaWarpSpecializedPingpong;
  using Epilogue = cutlass::epilogue::TmaWarpSpecialized;
  static constexpr int kStripe = 8;
};

// Below this, tiles of 128x128 do not fill the chip evenly, and cuBLASLt's choice of kernels should win (not measured).
constexpr int64_t kLeastTiles = 4 * 132;

struct Choice {
  Activation activation;
};

// activation(sum + bias), on as many values as CUTLASS hands over. Which activation is decided here, once for all of
// them: a kernel for each would double the compile time.
template <class Values>
struct BiasActivation {
  using Arguments = Choice;

  CUTLASS_DEVICE Values operator()(const Values& sums, const Values& biases, const Choice& choice) const {
    return choice.activation == Activation::gelu ? apply(sums, biases, Gelu()) : apply(sums, biases, Silu());
  }

  template <class F>
  CUTLASS_DEVICE Values apply(const Values& sums, const Values& biases, F activation) const {
    Values result;
    CUTLASS_PRAGMA_UNROLL
    for (int i = 0; i < Values::kElements; ++i) result[i] = activation(sums[i] + biases[i]);
    return result;
  }
};

template <class Element, bool out_in, class Tuned>
struct Kernel {
  using Row = cutlass::layout::RowMajor;
  using Weight = std::conditional_t<out_in, cutlass::layout::ColumnMajor, Row>;
  static constexpr int kAlignment = 16 / sizeof(Element);

  using Fusion = cutlass::epilogue::fusion::Sm90EVT<
      cutlass::epilogue::fusion::Sm90Compute<BiasActivation, Element, float,
                                             cutlass::FloatRoundStyle::round_to_nearest>,
      cutlass::epilogue::fusion::Sm90AccFetch,
      cutlass::epilogue::fusion::Sm90RowBroadcast<0, typename Tuned::Tile, Element, float>>;
  using Epilogue = typename cutlass::epilogue::collective::CollectiveBuilder<
      cutlass::arch::Sm90, cutlass::arch::OpClassTensorOp, typename Tuned::Tile, typename Tuned::Cluster,
      cutlass::epilogue::collective::EpilogueTileAuto, float, float, void, Row, kAlignment, Element, Row, kAlignment,
      typename Tuned::Epilogue, Fusion>::CollectiveOp;
  using Mainloop = typename cutlass::gemm::collective::CollectiveBuilder<
      cutlass::arch::Sm90, cutlass::arch::OpClassTensorOp, Element, Row, kAlignment, Element, Weight, kAlignment, float,
      typename Tuned::Tile, typename Tuned::Cluster,
      cutlass::gemm::collective::StageCountAutoCarveout<static_cast<int>(sizeof(typename Epilogue::SharedStorage))>,
      typename Tuned::Mainloop>::CollectiveOp;
  using Gemm = cutlass::gemm::device::GemmUniversalAdapter<
      cutlass::gemm::kernel::GemmUniversal<cute::Shape<int, int, int, int>, Mainloop, Epilogue>>;
};

void check(cutlass::Status status, const char* what) {
  if (status != cutlass::Status::kSuccess) {
    throw std::runtime_error(std::string("CUTLASS: ") + what + ": " + cutlass::cutlassGetStatusString(status));
  }
}

template <class Element, bool out_in, class Tuned = Tuning, class T>
void run(const LinearArgs<T>& a, int stripe, Context& context) {
  using Gemm = typename Kernel<Element, out_in, Tuned>::Gemm;
  const int64_t m = a.outer.size();
  typename Gemm::GemmKernel::StrideB weight_strides;
  if constexpr (out_in) {
    weight_strides = {a.K, cute::_1(), 0};
  } else {
    weight_strides = {cute::_1(), a.N, 0};
  }
  const auto pointer = [](const T* p) { return reinterpret_cast<const Element*>(p); };
  typename Gemm::Arguments arguments = {
      cutlass::gemm::GemmUniversalMode::kGemm,
      {static_cast<int>(m), static_cast<int>(a.N), static_cast<int>(a.K), 1},
      {pointer(a.x), {a.K, cute::_1(), 0}, pointer(a.weight), weight_strides},
      {{{}, {pointer(a.bias)}, {a.activation}}, nullptr, {}, reinterpret_cast<Element*>(a.y), {a.N, cute::_1(), 0}}};
  arguments.hw_info.device_id = device_properties().id;
  arguments.hw_info.sm_count = device_properties().multiprocessors;
  arguments.scheduler.max_swizzle_size = stripe;
  Gemm gemm;
  check(Gemm::can_implement(arguments), "can_implement");
  const size_t workspace = Gemm::get_workspace_size(arguments);
  check(gemm.initialize(arguments, workspace ? context.scratch(workspace) : nullptr, stream_of(context)), "initialize");
  check(gemm.run(stream_of(context)), "run");
}

}  // namespace

template <class T>
bool sm90_takes(const LinearArgs<T>& a) {
  constexpr int64_t most = std::numeric_limits<int>::max() - 256;
  const int64_t m = a.outer.size();
  if (a.activation != Activation::gelu && a.activation != Activation::silu) return false;
  if (a.residual || a.K == 0 || m > most || a.N > most || a.K > most) return false;
  const bool aligned = is_aligned<kWidth<T>>(a.N, {a.x, a.weight, a.bias, static_cast<const T*>(a.y)});
  if (!aligned || a.K % kWidth<T>) return false;
  if (((m + 127) / 128) * ((a.N + 127) / 128) < kLeastTiles) return false;
  return device_properties().major == 9 && device_properties().minor == 0;
}

template <class T>
void sm90(const LinearArgs<T>& a, Context& context) {
  using Element = std::conditional_t<std::is_same_v<T, float16>, cutlass::half_t, cutlass::bfloat16_t>;
  if (a.weight_layout == LinearAttributes::WeightLayout::out_in) {
    run<Element, true>(a, Tuning::kStripe, context);
  } else {
    run<Element, false>(a, Tuning::kStripe, context);
  }
}

template bool sm90_takes(const LinearArgs<float16>&);
template bool sm90_takes(const LinearArgs<bfloat16>&);
template void sm90(const LinearArgs<float16>&, Context&);
template void sm90(const LinearArgs<bfloat16>&, Context&);

}  // namespace ortops::linear
