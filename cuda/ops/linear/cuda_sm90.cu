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
// share loads; the part of it that is stored at a time, and how many of those are in flight; how many tiles wide a
// stripe is that stays in the L2 cache. Measured on an H200 at 8192x2048x8192 by tests/gpu/linear_tuning.cu: 0.4285 ms,
// where cuBLASLt's product alone takes 0.4050 tuned, 0.4518 as its heuristic has it, and product and pass 0.502. Tiles
// of 128x192 come to 0.427 in stripes of 1 and 0.512 in stripes of 8; one group of warps at a time (cooperative) to
// 0.488.
struct Tuning {
  using Tile = cute::Shape<cute::_128, cute::_128, cute::_64>;
  using Cluster = cute::Shape<cute::_2, cute::_1, cute::_1>;
  using Mainloop = cutlass::gemm::KernelTmaWarpSpecializedPingpong;
  using Stored = cute::Shape<cute::_64, cute::_32>;
  static constexpr int kStores = 2;
  static constexpr int kStripe = 8;
};

// With fewer elements in y, tiles do not fill the chip evenly, and cuBLASLt's choice of kernels should win (not
// measured). With a smaller K the activation takes longer than the product of the other group, and a pass is faster (at
// 8192x384x1536 on an H200: 0.033 ms against 0.041).
constexpr int64_t kLeastElements = 4 * 132 * 128 * 128, kLeastDepth = 512;

// F(sum + bias), on as many values as CUTLASS hands over.
template <class F>
struct After {
  template <class Values>
  struct Bias {
    CUTLASS_DEVICE Values operator()(const Values& sums, const Values& biases) const {
      Values result;
      CUTLASS_PRAGMA_UNROLL
      for (int i = 0; i < Values::kElements; ++i) result[i] = F()(sums[i] + biases[i]);
      return result;
    }
  };
};

template <class T>
using ElementOf = std::conditional_t<std::is_same_v<T, float16>, cutlass::half_t, cutlass::bfloat16_t>;

template <class T, bool out_in, class F, class Tuned>
struct Kernel {
  using Element = ElementOf<T>;
  using Row = cutlass::layout::RowMajor;
  using Weight = std::conditional_t<out_in, cutlass::layout::ColumnMajor, Row>;
  static constexpr int kStoredByThread = cute::size<1>(typename Tuned::Stored()) / 2;  // of 2 threads a row

  using Fusion = cutlass::epilogue::fusion::Sm90EVT<
      cutlass::epilogue::fusion::Sm90Compute<After<F>::template Bias, Element, float,
                                             cutlass::FloatRoundStyle::round_to_nearest>,
      cutlass::epilogue::fusion::Sm90AccFetch,
      cutlass::epilogue::fusion::Sm90RowBroadcast<0, typename Tuned::Tile, Element, float>>;
  // What CollectiveBuilder makes, but for the number of stores.
  using Epilogue = typename cutlass::epilogue::collective::detail::Sm90TmaBuilderImpl<
      typename Tuned::Tile, typename Tuned::Stored, float, float, void, Row, kWidth<T>, Element, Row, kWidth<T>, Fusion,
      cutlass::epilogue::Sm90TmaWarpSpecialized<Tuned::kStores, Tuned::kStores, kStoredByThread, false,
                                                true>>::CollectiveOp;
  using Mainloop = typename cutlass::gemm::collective::CollectiveBuilder<
      cutlass::arch::Sm90, cutlass::arch::OpClassTensorOp, Element, Row, kWidth<T>, Element, Weight, kWidth<T>, float,
      typename Tuned::Tile, typename Tuned::Cluster,
      cutlass::gemm::collective::StageCountAutoCarveout<static_cast<int>(sizeof(typename Epilogue::SharedStorage))>,
      typename Tuned::Mainloop>::CollectiveOp;
  using Device = cutlass::gemm::kernel::GemmUniversal<cute::Shape<int, int, int, int>, Mainloop, Epilogue>;
};

void check(cutlass::Status status, const char* what) {
  if (status != cutlass::Status::kSuccess) {
    throw std::runtime_error(std::string("CUTLASS: ") + what + ": " + cutlass::cutlassGetStatusString(status));
  }
}

template <class Device, bool out_in, class T>
void run(const LinearArgs<T>& a, int stripe, Context& context) {
  using Gemm = cutlass::gemm::device::GemmUniversalAdapter<Device>;
  const int64_t m = a.outer.size();
  typename Device::StrideB weight_strides;
  if constexpr (out_in) {
    weight_strides = {a.K, cute::_1(), 0};
  } else {
    weight_strides = {cute::_1(), a.N, 0};
  }
  const auto pointer = [](const T* p) { return reinterpret_cast<const ElementOf<T>*>(p); };
  typename Gemm::Arguments arguments = {
      cutlass::gemm::GemmUniversalMode::kGemm,
      {static_cast<int>(m), static_cast<int>(a.N), static_cast<int>(a.K), 1},
      {pointer(a.x), {a.K, cute::_1(), 0}, pointer(a.weight), weight_strides},
      {{{}, {pointer(a.bias)}, {}}, nullptr, {}, reinterpret_cast<ElementOf<T>*>(a.y), {a.N, cute::_1(), 0}}};
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
  if (a.activation != Activation::relu && a.activation != Activation::gelu && a.activation != Activation::silu)
    return false;
  if (a.residual || a.K == 0 || m > most || a.N > most || a.K > most) return false;
  const bool aligned = is_aligned<kWidth<T>>(a.N, {a.x, a.weight, a.bias, static_cast<const T*>(a.y)});
  if (!aligned || a.K % kWidth<T>) return false;
  if (m * a.N < kLeastElements || a.K < kLeastDepth) return false;
  return device_properties().major == 9 && device_properties().minor == 0;
}

template <class T>
void sm90(const LinearArgs<T>& a, Context& context) {
  const auto with = [&]<bool out_in, class F>() {
    run<typename Kernel<T, out_in, F, Tuning>::Device, out_in>(a, Tuning::kStripe, context);
  };
  const bool out_in = a.weight_layout == LinearAttributes::WeightLayout::out_in;
  const auto of_activation = [&]<class F>(F) {
    out_in ? with.template operator()<true, F>() : with.template operator()<false, F>();
  };
  if (a.activation == Activation::relu) return of_activation(Relu());
  a.activation == Activation::gelu ? of_activation(ShortGelu()) : of_activation(Silu());
}

template bool sm90_takes(const LinearArgs<float16>&);
template bool sm90_takes(const LinearArgs<bfloat16>&);
template void sm90(const LinearArgs<float16>&, Context&);
template void sm90(const LinearArgs<bfloat16>&, Context&);

}  // namespace ortops::linear
