// Times Linear with exact GELU on Hopper: the bare product by cuBLASLt (its own first choice, and the tuned one),
// product and pass (in several forms, also by chunks of rows), and the one kernel of cuda/ops/linear/cuda_sm90.cu in
// several layouts; checks the results against product and pass. What cuda_sm90.cu calls Tuning was chosen by this.
// Rounds are interleaved: compare within a block only. Lines are sorted by time.
//
//   nvcc -std=c++20 -O3 -DNDEBUG -DORTOPS_CUDA=1 -DORTOPS_SM90=1 -gencode arch=compute_90a,code=sm_90a
//       --extended-lambda --expt-relaxed-constexpr -Icuda -Ibuild -isystem CUTLASS/include
//       tests/gpu/linear_tuning.cu cuda/vendor/{cublaslt,library,runtime}.cc cuda/core/cuda.cc -ldl -o linear_tuning
//
// (build/gen holds the generated headers). cuBLASLt must be on the loader's path when it runs: linear_tuning [MxKxN...]
#include "ops/linear/cuda.cu"
#include "ops/linear/cuda_sm90.cu"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <functional>
#include <string>
#include <vector>

// Named: nvcc takes two unnamed namespaces, one inside the other's reach, for ambiguous.
namespace ortops::tuning {

class TestContext final : public Context {
 public:
  TestContext() {
    ORTOPS_CUDA_CHECK(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking));
    ORTOPS_CUDA_CHECK(cudaMalloc(&scratch_, kScratch));
  }
  void* stream() override { return stream_; }
  void* scratch(size_t bytes) override { return bytes <= kScratch ? scratch_ : throw std::runtime_error("scratch"); }
  bool check_indices() override { return false; }
  void parallel_for(int64_t, int64_t, FunctionRef<void(int64_t, int64_t)>) override { throw std::logic_error("CPU"); }
  void gemm(const Gemm&) override { throw std::logic_error("CPU"); }

 private:
  static constexpr size_t kScratch = 64 << 20;
  cudaStream_t stream_;
  void* scratch_;
};

__global__ void fill(float16* to, int64_t count, float scale, uint32_t seed) {
  for (int64_t i = blockIdx.x * int64_t(blockDim.x) + threadIdx.x; i < count; i += gridDim.x * int64_t(blockDim.x)) {
    uint32_t h = seed ^ static_cast<uint32_t>(i) * 2654435761u;
    float sum = 0;  // of four uniform numbers: near enough to a normal one
    for (int k = 0; k < 4; ++k) {
      h = (h ^ (h >> 15)) * 2246822519u;
      h = (h ^ (h >> 13)) * 3266489917u;
      sum += static_cast<float>(h >> 8) * 0x1p-24f - 0.5f;
    }
    to[i] = from_float<float16>(sum * 1.73f * scale);
  }
}

float16* random(int64_t count, float scale, uint32_t seed) {
  float16* pointer;
  ORTOPS_CUDA_CHECK(cudaMalloc(&pointer, count * sizeof(float16)));
  fill<<<1024, 256>>>(pointer, count, scale, seed);
  ORTOPS_CUDA_CHECK(cudaGetLastError());
  return pointer;
}

struct Candidate {
  std::string name;
  std::function<void()> run;
  std::vector<float> times = {};
};

enum Schedule { pingpong, cooperative, plain_schedule };  // plain: not persistent, one group of warps that computes

// As linear::Kernel, with more to choose. stages: of the main loop, 0 for as many as fit. blocks: of an SM.
template <Schedule schedule, int tile_m, int tile_n, int cluster_m, int cluster_n, int stored_n = 32, int stores = 2,
          class F = linear::ShortGelu, bool delay = true, int stages = 0, int blocks = 1>
struct Layout {
  using Tile = cute::Shape<cute::Int<tile_m>, cute::Int<tile_n>, cute::_64>;
  using Cluster = cute::Shape<cute::Int<cluster_m>, cute::Int<cluster_n>, cute::_1>;
  static constexpr int stored_m = schedule == cooperative ? 128 : 64;
  using Stored = cute::Shape<cute::Int<stored_m>, cute::Int<stored_n>>;
  using Row = cutlass::layout::RowMajor;
  using Fusion = cutlass::epilogue::fusion::Sm90EVT<
      cutlass::epilogue::fusion::Sm90Compute<linear::After<F>::template Bias, cutlass::half_t, float,
                                             cutlass::FloatRoundStyle::round_to_nearest>,
      cutlass::epilogue::fusion::Sm90AccFetch,
      cutlass::epilogue::fusion::Sm90RowBroadcast<0, Tile, cutlass::half_t, float>>;
  using Epilogue = typename cutlass::epilogue::collective::detail::Sm90TmaBuilderImpl<
      Tile, Stored, float, float, void, Row, 8, cutlass::half_t, Row, 8, Fusion,
      cutlass::epilogue::Sm90TmaWarpSpecialized<stores, stores, stored_n / 2, false, delay>>::CollectiveOp;
  using Stages = std::conditional_t<
      stages == 0,
      cutlass::gemm::collective::StageCountAutoCarveout<static_cast<int>(sizeof(typename Epilogue::SharedStorage))>,
      cutlass::gemm::collective::StageCount<stages>>;
  using Mainloop = typename cutlass::gemm::collective::CollectiveBuilder<
      cutlass::arch::Sm90, cutlass::arch::OpClassTensorOp, cutlass::half_t, Row, 8, cutlass::half_t, Row, 8, float,
      Tile, Cluster, Stages,
      std::conditional_t<schedule == pingpong, cutlass::gemm::KernelTmaWarpSpecializedPingpong,
                         std::conditional_t<schedule == cooperative, cutlass::gemm::KernelTmaWarpSpecializedCooperative,
                                            cutlass::gemm::KernelTmaWarpSpecialized>>>::CollectiveOp;
  using Base = cutlass::gemm::kernel::GemmUniversal<cute::Shape<int, int, int, int>, Mainloop, Epilogue>;
  struct Device : Base {
    static constexpr uint32_t MinBlocksPerMultiprocessor = blocks;
  };
};

// The pass over y with `vectors` of them in flight a thread, each thread once.
template <int vectors, bool streaming>
__global__ void __launch_bounds__(256) pass(float16* y, int64_t count) {
  const int64_t at = (blockIdx.x * int64_t(vectors) * 256 + threadIdx.x) * 8;
  Vector<float16, 8> values[vectors];
#pragma unroll
  for (int i = 0; i < vectors; ++i) values[i] = load<8>(y + at + i * 2048, at + i * 2048 < count);
#pragma unroll
  for (int i = 0; i < vectors; ++i) {
    auto wide = to_float(values[i]);
#pragma unroll
    for (int k = 0; k < 8; ++k) wide[k] = linear::ShortGelu()(wide[k]);
    values[i] = from_float<float16>(wide);
    if (at + i * 2048 >= count) continue;
    if (streaming) {
      __stcs(reinterpret_cast<uint4*>(y + at + i * 2048), detail::bit_cast<uint4>(values[i]));
    } else {
      store(y + at + i * 2048, values[i]);
    }
  }
}

// The largest difference, in epsilons of the larger of value and 0.5, as the bits of a float (which order as integers
// do, NaN above all).
__global__ void compare(const float16* a, const float16* b, int64_t count, int* worst) {
  float largest = 0;
  for (int64_t i = blockIdx.x * int64_t(blockDim.x) + threadIdx.x; i < count; i += gridDim.x * int64_t(blockDim.x)) {
    const float p = to_float(a[i]), q = to_float(b[i]);
    const float error = fabsf(p - q) / (0x1p-10f * fmaxf(fabsf(q), 0.5f));
    if (!(error <= largest) && largest == largest) largest = error;  // a NaN stays
  }
  atomicMax(worst, __float_as_int(fabsf(largest)));
}

float difference(const float16* a, const float16* b, int64_t count) {
  float* worst;
  float result;
  ORTOPS_CUDA_CHECK(cudaMalloc(&worst, sizeof result));
  ORTOPS_CUDA_CHECK(cudaMemset(worst, 0, sizeof result));
  compare<<<1024, 256>>>(a, b, count, reinterpret_cast<int*>(worst));
  ORTOPS_CUDA_CHECK(cudaMemcpy(&result, worst, sizeof result, cudaMemcpyDeviceToHost));
  ORTOPS_CUDA_CHECK(cudaFree(worst));
  return result;
}

void measure(int64_t m, int64_t k, int64_t n, TestContext& context) {
  LinearArgs<float16> a;
  a.activation = LinearAttributes::Activation::gelu;
  a.outer.rank = 1;
  a.outer.dims[0] = m;
  a.K = k;
  a.N = n;
  a.x = random(m * k, 1, 1);
  a.weight = random(k * n, 1 / std::sqrt(static_cast<float>(k)), 2);
  a.bias = random(n, 1, 3);
  a.y = random(m * n, 1, 4);
  float16* const expected = random(m * n, 1, 5);

  vendor::Gemm bare;
  bare.m = m, bare.n = n, bare.k = k;
  bare.ldx = k, bare.ldw = bare.ldc = bare.ldd = n;
  bare.type = vendor::DType::float16;
  bare.x = a.x, bare.w = a.weight, bare.d = a.y;
  const auto product = [&, bare](bool tune) {
    return [&, bare, tune] {
      vendor::gemm(bare, context.scratch(vendor::gemm_workspace()), vendor::gemm_workspace(), context.stream(), tune);
    };
  };
  const auto repo_pass = [&](float16* y) {
    launch(finish<float16, linear::ShortGelu, true>, grid_stride_blocks(m * n / 8, kThreads), kThreads, 0, context,
           static_cast<const float16*>(nullptr), y, m * n);
  };
  const auto two_passes = [&](LinearAttributes::Activation activation, float16* y) {
    LinearArgs<float16> b = a;
    b.activation = activation;
    b.y = y;
    const Rest rest = multiply(b, context);
    if (rest.activation != LinearAttributes::Activation::none) repo_pass(y);
  };
  two_passes(a.activation, expected);
  LinearArgs<float16> plain = a;
  plain.activation = LinearAttributes::Activation::none;

  std::vector<Candidate> candidates = {
      {"bare product, first", product(false)},
      {"bare product, tuned", product(true)},
      {"product + bias, tuned", [&] { multiply(plain, context); }},
      {"tanh-GELU epilogue", [&] { two_passes(LinearAttributes::Activation::gelu_tanh, a.y); }},
      {"pass alone: as in cuda.cu", [&] { repo_pass(a.y); }},
  };
  size_t fused = candidates.size();  // those before it do not give what is expected
  candidates.push_back({"product and pass", [&] { two_passes(LinearAttributes::Activation::gelu, a.y); }});
  const auto add_pass = [&]<int vectors, bool streaming>(const char* name) {
    const auto run = [&] {
      const int blocks = static_cast<int>((m * n + 2048 * vectors - 1) / (2048 * vectors));
      launch(pass<vectors, streaming>, blocks, 256, 0, context, a.y, m * n);
    };
    candidates.insert(candidates.begin() + fused++, {std::string("pass alone: ") + name, run});
    candidates.push_back({std::string("product and pass: ") + name, [&, run] { multiply(plain, context), run(); }});
  };
  add_pass.template operator()<1, false>("once, 1 vector");
  add_pass.template operator()<2, false>("once, 2 vectors");
  add_pass.template operator()<4, false>("once, 4 vectors");
  add_pass.template operator()<2, true>("once, 2 vectors, streaming store");
  for (int64_t rows : {1024, 2048, 4096}) {
    if (rows >= m) continue;
    candidates.push_back({"chunks of " + std::to_string(rows) + " rows, product and pass", [&, rows] {
                            for (int64_t row = 0; row < m; row += rows) {
                              LinearArgs<float16> chunk = plain;
                              chunk.outer.dims[0] = std::min(rows, m - row);
                              chunk.x += row * k;
                              chunk.y += row * n;
                              multiply(chunk, context);
                              const int64_t count = chunk.outer.dims[0] * n;
                              launch(pass<2, false>, static_cast<int>((count + 4095) / 4096), 256, 0, context, chunk.y,
                                     count);
                            }
                          }});
  }
  const auto add_device = [&]<class Device>(const std::string& name, std::initializer_list<int> stripes = {1, 8}) {
    for (int stripe : stripes) {
      candidates.push_back({name + ", stripe " + std::to_string(stripe),
                            [&, stripe] { linear::run<Device, false>(a, stripe, context); }});
    }
  };
  const auto add = [&]<class L>(L, const std::string& name, std::initializer_list<int> stripes = {1, 8}) {
    add_device.template operator()<typename L::Device>(name, stripes);
  };
  using linear::None, linear::ShortGelu;
  add_device.template operator()<typename linear::Kernel<float16, false, ShortGelu, linear::Tuning>::Device>("CHOSEN");
  // pp, co, np: ping-pong, cooperative, not persistent; tile, cluster, what is stored at once and how often.
  add(Layout<pingpong, 128, 128, 2, 1>(), "pp 128x128 2x1, 64x32 by 2");
  add(Layout<pingpong, 128, 128, 2, 1, 32, 2, linear::Gelu>(), "pp 128x128 2x1, 64x32 by 2, float32's GELU", {8});
  add(Layout<pingpong, 128, 128, 2, 1, 32, 2, None>(), "pp 128x128 2x1, 64x32 by 2, NO ACTIVATION", {8});
  add(Layout<pingpong, 128, 128, 2, 1, 32, 4, ShortGelu, false>(), "pp 128x128 2x1, 64x32 by 4, no delay");
  add(Layout<pingpong, 128, 128, 2, 1, 64, 2>(), "pp 128x128 2x1, 64x64 by 2");
  add(Layout<pingpong, 128, 128, 1, 2, 64, 2>(), "pp 128x128 1x2, 64x64 by 2");
  add(Layout<pingpong, 128, 128, 2, 1, 128, 2>(), "pp 128x128 2x1, 64x128 by 2");
  add(Layout<pingpong, 128, 192, 2, 1, 32, 2>(), "pp 128x192 2x1, 64x32 by 2");
  add(Layout<pingpong, 128, 192, 2, 1, 64, 2>(), "pp 128x192 2x1, 64x64 by 2");
  add(Layout<pingpong, 128, 192, 1, 2, 64, 2>(), "pp 128x192 1x2, 64x64 by 2");
  add(Layout<pingpong, 128, 192, 2, 1, 32, 2, None>(), "pp 128x192 2x1, 64x32 by 2, NO ACTIVATION", {8});
  add(Layout<pingpong, 128, 160, 2, 1, 32, 2>(), "pp 128x160 2x1, 64x32 by 2");
  add(Layout<pingpong, 192, 128, 1, 2, 64, 2>(), "pp 192x128 1x2, 64x64 by 2");
  add(Layout<pingpong, 192, 128, 2, 1, 64, 2>(), "pp 192x128 2x1, 64x64 by 2");
  add(Layout<pingpong, 64, 256, 2, 1, 64, 2>(), "pp 64x256 2x1, 64x64 by 2");
  add(Layout<cooperative, 128, 256, 2, 1, 32, 2>(), "co 128x256 2x1, 128x32 by 2");
  add(Layout<cooperative, 128, 256, 2, 1, 64, 2>(), "co 128x256 2x1, 128x64 by 2");
  add(Layout<cooperative, 256, 128, 2, 1, 32, 2>(), "co 256x128 2x1, 128x32 by 2");
  add(Layout<cooperative, 256, 128, 2, 1, 64, 2>(), "co 256x128 2x1, 128x64 by 2");
  add(Layout<cooperative, 256, 128, 1, 2, 64, 2>(), "co 256x128 1x2, 128x64 by 2");
  add(Layout<cooperative, 256, 128, 1, 2, 64, 2, None>(), "co 256x128 1x2, 128x64 by 2, NO ACTIVATION", {8});
  add(Layout<cooperative, 256, 128, 1, 2, 32, 4>(), "co 256x128 1x2, 128x32 by 4");
  add(Layout<cooperative, 128, 256, 1, 2, 64, 2>(), "co 128x256 1x2, 128x64 by 2");
  add(Layout<cooperative, 128, 192, 2, 1, 64, 2>(), "co 128x192 2x1, 128x64 by 2");
  add(Layout<cooperative, 128, 192, 1, 2, 64, 2>(), "co 128x192 1x2, 128x64 by 2");
  add(Layout<plain_schedule, 64, 128, 2, 1, 64, 2, ShortGelu, true, 4, 2>(), "np 64x128 2x1, 64x64 by 2, 2 blocks",
      {1});
  add(Layout<plain_schedule, 64, 128, 4, 1, 32, 2, ShortGelu, true, 4, 2>(), "np 64x128 4x1, 64x32 by 2, 2 blocks",
      {1});
  add(Layout<plain_schedule, 64, 192, 2, 1, 64, 2, ShortGelu, true, 3, 2>(), "np 64x192 2x1, 64x64 by 2, 2 blocks",
      {1});

  std::vector<double> errors(candidates.size());
  for (size_t i = 0; i < candidates.size(); ++i) {
    ORTOPS_CUDA_CHECK(cudaMemset(a.y, 0xff, m * n * 2));
    for (int turn = 0; turn < 2; ++turn) candidates[i].run();
    ORTOPS_CUDA_CHECK(cudaDeviceSynchronize());
    if (i >= fused && candidates[i].name.find("NO ACTIVATION") == std::string::npos)
      errors[i] = difference(a.y, expected, m * n);
  }
  constexpr int kRounds = 9, kRepeats = 4;
  cudaEvent_t begin, end;
  ORTOPS_CUDA_CHECK(cudaEventCreate(&begin));
  ORTOPS_CUDA_CHECK(cudaEventCreate(&end));
  for (int round = 0; round < kRounds; ++round) {
    for (Candidate& candidate : candidates) {
      candidate.run();
      ORTOPS_CUDA_CHECK(cudaEventRecord(begin, stream_of(context)));
      for (int repeat = 0; repeat < kRepeats; ++repeat) candidate.run();
      ORTOPS_CUDA_CHECK(cudaEventRecord(end, stream_of(context)));
      ORTOPS_CUDA_CHECK(cudaEventSynchronize(end));
      float milliseconds;
      ORTOPS_CUDA_CHECK(cudaEventElapsedTime(&milliseconds, begin, end));
      candidate.times.push_back(milliseconds / kRepeats);
    }
  }
  std::printf("%ldx%ldx%ld fp16, gelu\n", static_cast<long>(m), static_cast<long>(k), static_cast<long>(n));
  std::vector<size_t> order(candidates.size());
  for (size_t i = 0; i < order.size(); ++i) {
    order[i] = i;
    std::sort(candidates[i].times.begin(), candidates[i].times.end());
  }
  std::sort(order.begin(), order.end(),
            [&](size_t a, size_t b) { return candidates[a].times[kRounds / 2] < candidates[b].times[kRounds / 2]; });
  for (size_t i : order) {
    const auto& times = candidates[i].times;
    std::printf("  %-52s %.4f ms (best %.4f)", candidates[i].name.c_str(), times[kRounds / 2], times.front());
    if (i >= fused) std::printf("  difference %.2f epsilon%s", errors[i], errors[i] <= 2 ? "" : "  WRONG");
    std::printf("\n");
  }
  std::fflush(stdout);
  for (const float16* pointer : std::initializer_list<const float16*>{a.x, a.weight, a.bias, a.y, expected}) {
    ORTOPS_CUDA_CHECK(cudaFree(const_cast<float16*>(pointer)));
  }
}

}  // namespace ortops::tuning

int main(int count, char** arguments) {
  std::vector<std::string> shapes(arguments + 1, arguments + count);
  if (shapes.empty()) shapes = {"8192x2048x8192", "8192x768x3072", "8192x384x1536", "4096x2048x5632", "1024x1024x4096"};
  try {
    ortops::tuning::TestContext context;
    for (const std::string& shape : shapes) {
      long m, k, n;
      if (std::sscanf(shape.c_str(), "%ldx%ldx%ld", &m, &k, &n) != 3) throw std::runtime_error(shape + " is not MxKxN");
      ortops::tuning::measure(m, k, n, context);
    }
    return 0;
  } catch (const std::exception& error) {
    std::printf("FAILED: %s\n", error.what());
    return 1;
  }
}
