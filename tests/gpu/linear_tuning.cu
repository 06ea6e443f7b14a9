// Times Linear with exact GELU on Hopper: the bare product by cuBLASLt (its own first choice, and the tuned one),
// product and pass, and the one kernel of cuda/ops/linear/cuda_sm90.cu in several layouts; checks the latter against
// the former. What cuda_sm90.cu calls Tuning was chosen by this. Rounds are interleaved: compare within a line only.
//
//   nvcc -std=c++20 -O3 -DNDEBUG -DORTOPS_CUDA=1 -DORTOPS_SM90=1 -gencode arch=compute_90a,code=sm_90a
//   --extended-lambda
//       --expt-relaxed-constexpr -Icuda -Ibuild -isystem CUTLASS/include tests/gpu/linear_tuning.cu
//       cuda/vendor/{cublaslt,library,runtime}.cc cuda/core/cuda.cc -ldl -o linear_tuning
//
// (build/gen holds the generated headers). cuBLASLt must be on the loader's path when it runs: linear_tuning [MxKxN...]
#include "ops/linear/cuda.cu"
#include "ops/linear/cuda_sm90.cu"

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

using linear::Tuning;
template <int tile_m, int tile_n, int cluster_m, int cluster_n, bool pingpong = true>
struct Layout {
  using Tile = cute::Shape<cute::Int<tile_m>, cute::Int<tile_n>, cute::_64>;
  using Cluster = cute::Shape<cute::Int<cluster_m>, cute::Int<cluster_n>, cute::_1>;
  using Mainloop = std::conditional_t<pingpong, cutlass::gemm::KernelTmaWarpSpecializedPingpong,
                                      cutlass::gemm::KernelTmaWarpSpecializedCooperative>;
  using Epilogue = std::conditional_t<pingpong, cutlass::epilogue::TmaWarpSpecialized,
                                      cutlass::epilogue::TmaWarpSpecializedCooperative>;
};

// The largest difference, in epsilons of the larger of value and 0.5.
double difference(const float16* a, const float16* b, int64_t count) {
  std::vector<float16> x(count), y(count);
  ORTOPS_CUDA_CHECK(cudaMemcpy(x.data(), a, count * 2, cudaMemcpyDeviceToHost));
  ORTOPS_CUDA_CHECK(cudaMemcpy(y.data(), b, count * 2, cudaMemcpyDeviceToHost));
  double worst = 0;
  for (int64_t i = 0; i < count; ++i) {
    const double p = to_float(x[i]), q = to_float(y[i]);
    const double error = std::abs(p - q) / (0x1p-10 * std::max(std::abs(q), 0.5));
    if (!(error <= worst)) worst = error;
  }
  return worst;
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
  const auto two_passes = [&](LinearAttributes::Activation activation, float16* y) {
    LinearArgs<float16> b = a;
    b.activation = activation;
    b.y = y;
    const Rest rest = multiply(b, context);
    if (rest.activation == LinearAttributes::Activation::none) return;
    launch(finish<float16, linear::Gelu, true>, grid_stride_blocks(m * n / 8, kThreads), kThreads, 0, context,
           static_cast<const float16*>(nullptr), y, m * n);
  };
  two_passes(a.activation, expected);

  std::vector<Candidate> candidates = {
      {"bare product, first", product(false)},
      {"bare product, tuned", product(true)},
      {"tanh-GELU epilogue", [&] { two_passes(LinearAttributes::Activation::gelu_tanh, a.y); }},
      {"product and pass", [&] { two_passes(LinearAttributes::Activation::gelu, a.y); }},
  };
  const size_t fused = candidates.size();
  const auto add = [&](auto layout, const char* name) {
    for (int stripe : {1, 2, 4, 8}) {
      candidates.push_back({std::string(name) + ", stripe " + std::to_string(stripe), [&, stripe] {
                              linear::run<cutlass::half_t, false, decltype(layout)>(a, stripe, context);
                            }});
    }
  };
  add(Tuning(), "chosen (ping-pong 128x128 by 2x1)");
  add(Layout<128, 128, 1, 2>(), "ping-pong 128x128 by 1x2");
  add(Layout<128, 128, 2, 2>(), "ping-pong 128x128 by 2x2");
  add(Layout<64, 256, 2, 1>(), "ping-pong 64x256 by 2x1");
  add(Layout<128, 256, 2, 1, false>(), "cooperative 128x256 by 2x1");
  add(Layout<256, 128, 2, 1, false>(), "cooperative 256x128 by 2x1");

  std::vector<double> errors(candidates.size());
  for (size_t i = 0; i < candidates.size(); ++i) {
    ORTOPS_CUDA_CHECK(cudaMemset(a.y, 0xff, m * n * 2));
    for (int turn = 0; turn < 2; ++turn) candidates[i].run();
    ORTOPS_CUDA_CHECK(cudaDeviceSynchronize());
    if (i >= fused) errors[i] = difference(a.y, expected, m * n);
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
  for (size_t i = 0; i < candidates.size(); ++i) {
    auto& times = candidates[i].times;
    std::sort(times.begin(), times.end());
    std::printf("  %-44s %.4f ms (best %.4f)", candidates[i].name.c_str(), times[kRounds / 2], times.front());
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
