// Checks cuda/vendor on a GPU: products against a naive kernel in double, attention against float64 on the host.
// Prints a line a group with its largest error; the exit status is the number of failures (at most 99).
//
//   g++ -std=c++20 -Os -fPIC -fvisibility=hidden -DCUDNN_FRONTEND_SKIP_JSON_LIB -Icuda -isystem CUDNN_INCLUDES
//       -isystem CUDA/include -c cuda/vendor/cudnn.cc -o cudnn.o
//   nvcc -std=c++20 -O2 -arch=sm_90 -Icuda tests/gpu/vendor_check.cu cuda/vendor/{cublaslt,library,runtime}.cc cudnn.o
//       -ldl -o vendor_check
//
// cuBLASLt, cuDNN and nvrtc must be on the loader's path (LD_LIBRARY_PATH) when it runs.
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <limits>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "vendor/cublaslt.h"
#include "vendor/cudnn.h"
#include "vendor/runtime.h"

using namespace ortops::vendor;
using i64 = std::int64_t;

namespace {

int failures = 0;

void report(bool ok, const std::string& what, double error = 0) {
  std::printf("%s  %-64s largest error %.2e\n", ok ? "PASS" : "FAIL", what.c_str(), error);
  std::fflush(stdout);
  if (!ok) ++failures;
}

#define CUDA(call) check_cuda(call, #call)

std::size_t size_of(DType type) { return type == DType::float32 ? 4 : 2; }

float rounded(DType type, float value) {
  if (type == DType::float16) return __half2float(__float2half(value));
  if (type == DType::bfloat16) return __bfloat162float(__float2bfloat16(value));
  return value;
}

// Host values in float, and the same on the device in `type`, `offset` elements past an aligned address.
class Tensor {
 public:
  Tensor(DType type, std::vector<float> values, i64 offset = 0)
      : host(std::move(values)), type_(type), offset_(offset) {
    CUDA(cudaMalloc(&base_, (host.size() + offset + 1) * size_of(type)));
    for (float& value : host) value = rounded(type, value);
    upload();
  }
  ~Tensor() { static_cast<void>(cudaFree(base_)); }
  Tensor(const Tensor&) = delete;

  void* data() const { return static_cast<char*>(base_) + offset_ * size_of(type_); }

  void upload() {
    std::vector<char> bytes(host.size() * size_of(type_));
    for (std::size_t i = 0; i < host.size(); ++i) {
      if (type_ == DType::float32) reinterpret_cast<float*>(bytes.data())[i] = host[i];
      if (type_ == DType::float16) reinterpret_cast<__half*>(bytes.data())[i] = __float2half(host[i]);
      if (type_ == DType::bfloat16) reinterpret_cast<__nv_bfloat16*>(bytes.data())[i] = __float2bfloat16(host[i]);
    }
    CUDA(cudaMemcpy(data(), bytes.data(), bytes.size(), cudaMemcpyHostToDevice));
    CUDA(
        cudaDeviceSynchronize());  // the copy may return early, and the checked streams do not wait for the default one
  }

  std::vector<float> download() const {
    std::vector<char> bytes(host.size() * size_of(type_));
    CUDA(cudaMemcpy(bytes.data(), data(), bytes.size(), cudaMemcpyDeviceToHost));
    std::vector<float> values(host.size());
    for (std::size_t i = 0; i < values.size(); ++i) {
      if (type_ == DType::float32) values[i] = reinterpret_cast<const float*>(bytes.data())[i];
      if (type_ == DType::float16) values[i] = __half2float(reinterpret_cast<const __half*>(bytes.data())[i]);
      if (type_ == DType::bfloat16)
        values[i] = __bfloat162float(reinterpret_cast<const __nv_bfloat16*>(bytes.data())[i]);
    }
    return values;
  }

  std::vector<float> host;

 private:
  DType type_;
  i64 offset_;
  void* base_ = nullptr;
};

std::mt19937 generator(1);

std::vector<float> random_values(i64 count) {
  std::uniform_real_distribution<float> distribution(-1, 1);
  std::vector<float> values(count);
  for (float& value : values) value = distribution(generator);
  return values;
}

// Random rows in longer rows: what lies between must be neither used nor written, so it is NaN.
std::vector<float> random_matrix(i64 rows, i64 columns, i64 leading) {
  auto values = random_values(rows * leading);
  for (i64 i = 0; i < rows * leading; ++i)
    if (i % leading >= columns) values[i] = std::numeric_limits<float>::quiet_NaN();
  return values;
}

// ---- products

__global__ void naive(double* out, const float* x, const float* w, const float* bias, const float* c, i64 m, i64 n,
                      i64 k, i64 ldx, i64 w_step_k, i64 w_step_n, i64 ldc, double beta, bool gelu) {
  const i64 at = blockIdx.x * static_cast<i64>(blockDim.x) + threadIdx.x;
  if (at >= m * n) return;
  const i64 row = at / n, column = at % n;
  double sum = bias ? bias[column] : 0;
  if (c) sum += beta * c[row * ldc + column];
  for (i64 i = 0; i < k; ++i)
    sum += static_cast<double>(x[row * ldx + i]) * static_cast<double>(w[i * w_step_k + column * w_step_n]);
  if (gelu) sum = 0.5 * sum * (1 + tanh(0.7978845608028654 * (sum + 0.044715 * sum * sum * sum)));
  out[at] = sum;
}

struct Operands {
  Gemm gemm;
  Tensor x, w, bias, c, d;

  Operands(Gemm g, i64 padding, i64 offset, bool residual)
      : gemm(prepared(g, padding)),
        x(g.type, random_matrix(g.m, g.k, gemm.ldx), offset),
        w(g.type, g.weight_out_in ? random_matrix(g.n, g.k, gemm.ldw) : random_matrix(g.k, g.n, gemm.ldw), offset),
        bias(g.type, random_values(g.n), offset),
        c(g.type, random_matrix(g.m, g.n, gemm.ldc), offset),
        d(g.type, std::vector<float>(g.m * gemm.ldd, 77), offset) {
    const auto e = g.epilogue;
    gemm.x = x.data();
    gemm.w = w.data();
    gemm.d = d.data();
    if (e == Epilogue::bias || e == Epilogue::gelu_tanh_bias) gemm.bias = bias.data();
    if (residual) gemm.c = c.data();
  }

  std::vector<double> expected() const {
    const auto& g = gemm;
    const Tensor fx(DType::float32, x.host), fw(DType::float32, w.host), fb(DType::float32, bias.host),
        fc(DType::float32, c.host);
    const auto e = g.epilogue;
    const bool gelu = e == Epilogue::gelu_tanh || e == Epilogue::gelu_tanh_bias;
    double* out = nullptr;
    CUDA(cudaMalloc(&out, g.m * g.n * sizeof(double)));
    const auto f = [](const Tensor& t) { return static_cast<const float*>(t.data()); };
    naive<<<static_cast<unsigned>((g.m * g.n + 255) / 256), 256>>>(
        out, f(fx), f(fw), g.bias ? f(fb) : nullptr, g.c ? f(fc) : nullptr, g.m, g.n, g.k, g.ldx,
        g.weight_out_in ? 1 : g.ldw, g.weight_out_in ? g.ldw : 1, g.ldc, g.beta, gelu);
    CUDA(cudaGetLastError());
    std::vector<double> values(g.m * g.n);
    CUDA(cudaMemcpy(values.data(), out, values.size() * sizeof(double), cudaMemcpyDeviceToHost));
    CUDA(cudaFree(out));
    return values;
  }

  // The largest |got - expected| / (1 + |expected|); infinite if padding was written.
  double error(const std::vector<double>& expected) const {
    const auto got = d.download();
    double largest = 0;
    for (i64 i = 0; i < gemm.m * gemm.ldd; ++i) {
      const i64 column = i % gemm.ldd;
      if (column >= gemm.n) {
        if (got[i] != 77) return std::numeric_limits<double>::infinity();
        continue;
      }
      const double wanted = expected[i / gemm.ldd * gemm.n + column];
      const double difference = std::abs(got[i] - wanted) / (1 + std::abs(wanted));
      if (!(difference <= largest)) largest = std::isnan(difference) ? INFINITY : difference;
    }
    return largest;
  }

 private:
  static Gemm prepared(Gemm g, i64 padding) {
    g.ldx = g.k + padding;
    g.ldw = (g.weight_out_in ? g.k : g.n) + padding;
    g.ldc = g.n + padding;
    g.ldd = g.n + padding;
    return g;
  }
};

// Rounding of the result, and of sums of up to 200 products in float32 (TF32: of each factor, to 11 bits; sums of 200
// such errors were seen to reach 5.2e-3). cuBLASLt's GELU uses the hardware's tanh, which is right to 11 bits. With
// a bias some of its 16-bit kernels round the product before they add it: half an epsilon more (seen on an H200: 6.9e-3
// in bfloat16, and 8.6e-4 in float16 with c as well).
double tolerance(const Gemm& g) {
  const bool gelu = g.epilogue == Epilogue::gelu_tanh || g.epilogue == Epilogue::gelu_tanh_bias;
  const bool twice = g.bias || g.c;
  if (g.type == DType::float16) return (gelu ? 1.1e-3 : 6e-4) + (twice ? 4.9e-4 : 0);
  if (g.type == DType::bfloat16) return (gelu ? 5.5e-3 : 4.5e-3) + (twice ? 3.9e-3 : 0);
  return g.tf32 ? 6e-3 : gelu ? 1e-3 : 1e-5;
}

constexpr DType all_types[] = {DType::float32, DType::float16, DType::bfloat16};

void check_products(cudaStream_t stream, void* workspace) {
  constexpr i64 sizes[][3] = {{1, 64, 32},    {1, 771, 96},   {3, 5, 7},     {37, 50, 129},
                              {128, 256, 64}, {257, 331, 72}, {64, 771, 200}};
  constexpr const char* names[] = {"none", "bias", "gelu_tanh", "gelu_tanh_bias"};
  for (const DType type : all_types)
    for (const bool tf32 : {false, true})
      for (const bool out_in : {false, true})
        for (int epilogue = 0; epilogue < 4; ++epilogue) {
          if (tf32 && type != DType::float32) continue;
          const std::string name = std::string("product ") + dtype_name(type) + (tf32 ? " tf32" : "") +
                                   (out_in ? " [N,K] " : " [K,N] ") + names[epilogue];
          double largest = 0;
          bool ok = true;
          try {
            for (const auto& [m, n, k] : sizes)
              for (const auto& [padding, offset] : {std::pair<i64, i64>{0, 0}, {8, 0}, {3, 1}})
                for (const bool residual : {false, true}) {
                  Gemm g;
                  g.m = m, g.n = n, g.k = k;
                  g.type = type;
                  g.tf32 = tf32;
                  g.weight_out_in = out_in;
                  g.epilogue = static_cast<Epilogue>(epilogue);
                  g.beta = 0.5f;
                  Operands o(g, padding, offset, residual);
                  gemm(o.gemm, workspace, gemm_workspace(), stream, /*tune=*/padding != 8);
                  CUDA(cudaStreamSynchronize(stream));
                  const double error = o.error(o.expected());
                  largest = std::max(largest, error);
                  ok = ok && error <= tolerance(o.gemm);
                }
            report(ok, name, largest);
          } catch (const std::exception& error) {
            report(false, name + ": " + error.what());
          }
        }
}

Gemm model_product() {
  Gemm g;
  g.m = 96, g.n = 160, g.k = 64;
  g.type = DType::float16;
  g.epilogue = Epilogue::bias;
  g.beta = 1;
  return g;
}

void check_product_uses(cudaStream_t stream, void* workspace) {
  const auto run = [&](const Gemm& g) { gemm(g, workspace, gemm_workspace(), stream); };
  {
    Operands o(model_product(), 0, 0, true);
    const auto expected = o.expected();
    o.d.host = o.c.host;
    o.d.upload();
    o.gemm.c = o.gemm.d;
    run(o.gemm);
    CUDA(cudaStreamSynchronize(stream));
    const double error = o.error(expected);
    report(error <= tolerance(o.gemm), "product in place: c == d, once added", error);
  }
  {
    constexpr i64 batch = 5, m = 33, n = 40, k = 24;
    Gemm whole;
    whole.m = batch * m, whole.n = n, whole.k = k;
    whole.type = DType::bfloat16;
    Operands o(whole, 0, 0, false);  // one weight for all: the stacked product is the reference
    Gemm g = o.gemm;
    g.m = m;
    g.batch = batch;
    g.stride_x = m * k, g.stride_d = m * n;
    run(g);
    CUDA(cudaStreamSynchronize(stream));
    const double error = o.error(o.expected());
    report(error <= tolerance(g), "batched product", error);
  }
  for (const bool tuned_before : {true, false}) {
    Gemm g = model_product();
    g.m += 8 * (1 + tuned_before);  // not met before
    Operands o(g, 0, 0, false);
    if (tuned_before) run(o.gemm);
    CUDA(cudaStreamSynchronize(stream));
    cudaGraph_t graph;
    cudaGraphExec_t executable;
    CUDA(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
    run(o.gemm);
    CUDA(cudaStreamEndCapture(stream, &graph));
    CUDA(cudaGraphInstantiate(&executable, graph, 0));
    o.x.host = random_values(o.x.host.size());
    for (float& value : o.x.host) value = rounded(g.type, value);
    o.x.upload();
    CUDA(cudaGraphLaunch(executable, stream));
    CUDA(cudaStreamSynchronize(stream));
    const double error = o.error(o.expected());
    report(error <= tolerance(g),
           std::string("product captured and replayed, ") + (tuned_before ? "plan known" : "plan new"), error);
    CUDA(cudaGraphExecDestroy(executable));
    CUDA(cudaGraphDestroy(graph));
  }
  {
    constexpr int threads = 8;
    std::vector<double> errors(threads, INFINITY);
    std::vector<std::unique_ptr<Operands>> operands;
    Gemm g = model_product();
    g.m = 123;
    for (int i = 0; i < threads; ++i) operands.push_back(std::make_unique<Operands>(g, 0, 0, false));
    std::vector<std::thread> running;
    for (int i = 0; i < threads; ++i)
      running.emplace_back([&, i] {
        try {
          cudaStream_t own;
          void* own_workspace = nullptr;
          CUDA(cudaStreamCreateWithFlags(&own, cudaStreamNonBlocking));
          CUDA(cudaMalloc(&own_workspace, gemm_workspace()));
          for (int repeat = 0; repeat < 100; ++repeat) gemm(operands[i]->gemm, own_workspace, gemm_workspace(), own);
          CUDA(cudaStreamSynchronize(own));
          errors[i] = 0;
          CUDA(cudaFree(own_workspace));
          CUDA(cudaStreamDestroy(own));
        } catch (const std::exception& error) {
          std::printf("thread %d: %s\n", i, error.what());
        }
      });
    for (auto& thread : running) thread.join();
    double largest = 0;
    for (int i = 0; i < threads; ++i)
      largest = std::max({largest, errors[i], operands[i]->error(operands[i]->expected())});
    report(largest <= tolerance(g), "product by 8 threads, one new shape", largest);
  }
  {
    Gemm g = model_product();
    Operands o(g, 0, 0, false);
    o.gemm.ldd = 1;
    bool threw = false;
    try {
      run(o.gemm);
    } catch (const std::exception& error) {
      threw = true;
      std::printf("      %s\n", error.what());
    }
    report(threw, "a product that cuBLASLt refuses is an error");
  }
}

// ---- attention

enum class Layout { bhsd, bshd, packed };  // packed: q, k, v as slices of one [B,S,(H+2*Hkv)*D]

struct Case {
  const char* name;
  i64 batch, heads, kv_heads, q_len, kv_len, head_dim, value_dim;
  Causal causal = Causal::none;
  std::array<int, 4> bias = {};  // 1: of full size there, 0: broadcast; {-1}: no bias
  bool lengths = false;
  Layout layout = Layout::bhsd;
};

constexpr std::array<int, 4> no_bias = {-1, 0, 0, 0};
constexpr auto full = Causal::none, top_left = Causal::top_left, bottom_right = Causal::bottom_right;

const Case cases[] = {
    {"head size 32", 2, 4, 4, 200, 200, 32, 32, full, no_bias},
    {"head size 64", 2, 4, 4, 200, 200, 64, 64, full, no_bias},
    {"head size 128", 2, 4, 4, 200, 200, 128, 128, full, no_bias},
    {"head size 80", 2, 4, 4, 136, 136, 80, 80, full, no_bias},
    {"head size 256", 1, 2, 2, 136, 136, 256, 256, full, no_bias},
    {"head size 8", 1, 2, 2, 65, 65, 8, 8, full, no_bias},
    {"values of another size", 2, 4, 4, 128, 128, 128, 64, full, no_bias},
    {"odd lengths 77, 131", 2, 3, 3, 77, 131, 64, 64, full, no_bias},
    {"one position", 2, 4, 4, 1, 1, 64, 64, full, no_bias},
    {"[B,S,H,D]", 2, 4, 4, 100, 100, 64, 64, full, no_bias, false, Layout::bshd},
    {"packed QKV", 2, 4, 2, 100, 100, 64, 64, top_left, no_bias, false, Layout::packed},
    {"causal, square", 2, 4, 4, 200, 200, 64, 64, top_left, no_bias},
    {"causal top-left, 60 over 200", 2, 4, 4, 60, 200, 64, 64, top_left, no_bias},
    {"causal top-left, 200 over 60", 2, 4, 4, 200, 60, 64, 64, top_left, no_bias},
    {"causal bottom-right, 60 over 200", 2, 4, 4, 60, 200, 64, 64, bottom_right, no_bias},
    {"causal bottom-right, 1 over 200", 2, 4, 4, 1, 200, 64, 64, bottom_right, no_bias},
    {"grouped heads 8/2, causal, [B,S,H,D]", 2, 8, 2, 130, 130, 128, 128, top_left, no_bias, false, Layout::bshd},
    {"grouped heads 6/1", 1, 6, 1, 90, 90, 32, 32, full, no_bias},
    {"bias [B,H,S,S]", 2, 4, 4, 200, 200, 64, 64, full, {1, 1, 1, 1}},
    {"bias [1,H,S,S]", 2, 4, 4, 200, 200, 64, 64, full, {0, 1, 1, 1}},
    {"bias [B,1,S,S]", 2, 4, 4, 200, 200, 64, 64, full, {1, 0, 1, 1}},
    {"bias [B,1,1,S]", 2, 4, 4, 200, 200, 64, 64, full, {1, 0, 0, 1}},
    {"bias [1,1,S,S]", 2, 4, 4, 200, 200, 64, 64, full, {0, 0, 1, 1}},
    {"bias [1,1,1,S]", 2, 4, 4, 200, 200, 64, 64, full, {0, 0, 0, 1}},
    {"bias [B,H,S,1]", 2, 4, 4, 200, 200, 64, 64, full, {1, 1, 1, 0}},
    {"bias [B,1,1,S], 131 keys", 2, 4, 4, 77, 131, 64, 64, full, {1, 0, 0, 1}},
    {"bias [1,H,S,S], 131 keys", 2, 4, 4, 77, 131, 64, 64, full, {0, 1, 1, 1}},
    {"bias [B,1,1,S], 12 keys", 2, 12, 12, 12, 12, 32, 32, full, {1, 0, 0, 1}, false, Layout::bshd},
    {"bias [B,1,S,S], grouped heads, one query", 2, 8, 2, 1, 120, 64, 64, full, {1, 0, 1, 1}},
    {"bias [1,H,S,S], causal", 2, 4, 4, 200, 200, 64, 64, top_left, {0, 1, 1, 1}},
    {"bias [1,H,S,S], lengths", 2, 4, 4, 200, 200, 64, 64, full, {0, 1, 1, 1}, true},
    {"lengths", 3, 4, 4, 200, 200, 64, 64, full, no_bias, true},
    {"lengths, [B,S,H,D], head size 32", 3, 12, 12, 128, 128, 32, 32, full, no_bias, true, Layout::bshd},
    {"lengths, causal top-left", 3, 4, 4, 130, 130, 64, 64, top_left, no_bias, true},
    {"lengths, causal bottom-right, 60 over 200", 3, 4, 4, 60, 200, 64, 64, bottom_right, no_bias, true},
    {"lengths, grouped heads, one query", 3, 8, 2, 1, 300, 128, 128, full, no_bias, true},
};

struct AttentionData {
  Attention a;
  std::vector<int> q_lengths, kv_lengths;
  std::unique_ptr<Tensor> q, k, v, bias, o, stats;
  int* device_lengths = nullptr;
  AttentionPointers pointers;

  AttentionData(const Case& c, DType type, float masked) {
    a.type = type;
    a.batch = c.batch, a.heads = c.heads, a.kv_heads = c.kv_heads;
    a.q_len = c.q_len, a.kv_len = c.kv_len;
    a.head_dim = c.head_dim, a.value_dim = c.value_dim;
    a.causal = c.causal;
    a.scale = 1 / std::sqrt(static_cast<float>(c.head_dim));
    a.lengths = c.lengths;
    a.stats = true;
    const auto strides = [&](i64 heads, i64 length, i64 dim) -> std::array<i64, 4> {
      if (c.layout == Layout::bhsd) return {heads * length * dim, length * dim, dim, 1};
      const i64 row = c.layout == Layout::bshd ? heads * dim : (c.heads + 2 * c.kv_heads) * dim;
      return {length * row, dim, row, 1};
    };
    a.q_strides = strides(c.heads, c.q_len, c.head_dim);
    a.k_strides = strides(c.kv_heads, c.kv_len, c.head_dim);
    a.v_strides = strides(c.kv_heads, c.kv_len, c.value_dim);
    a.o_strides = c.layout == Layout::bhsd
                      ? std::array<i64, 4>{c.heads * c.q_len * c.value_dim, c.q_len * c.value_dim, c.value_dim, 1}
                      : std::array<i64, 4>{c.heads * c.q_len * c.value_dim, c.value_dim, c.heads * c.value_dim, 1};
    q = std::make_unique<Tensor>(type, random_values(c.batch * a.q_strides[0]));
    if (c.layout != Layout::packed) {
      k = std::make_unique<Tensor>(type, random_values(c.batch * a.k_strides[0]));
      v = std::make_unique<Tensor>(type, random_values(c.batch * a.v_strides[0]));
    }
    o = std::make_unique<Tensor>(type, std::vector<float>(c.batch * c.heads * c.q_len * c.value_dim, 77));
    stats = std::make_unique<Tensor>(DType::float32, std::vector<float>(c.batch * c.heads * c.q_len, 77));
    pointers.q = q->data();
    pointers.k = k ? k->data() : static_cast<char*>(q->data()) + k_at() * size_of(type);
    pointers.v = v ? v->data() : static_cast<char*>(q->data()) + v_at() * size_of(type);
    pointers.o = o->data();
    pointers.stats = static_cast<float*>(stats->data());
    if (c.bias[0] >= 0) {
      const std::array<i64, 4> sizes = {c.batch, c.heads, c.q_len, c.kv_len};
      i64 count = 1;
      for (int i = 3; i >= 0; --i) {
        a.bias_dims[i] = c.bias[i] ? sizes[i] : 1;
        a.bias_strides[i] = count;
        count *= a.bias_dims[i];
      }
      auto values = random_values(count);
      for (i64 i = 0; i < count; ++i)
        if (a.bias_dims[3] > 1 && i % a.bias_dims[3] && values[i] < -0.4f) values[i] = masked;
      bias = std::make_unique<Tensor>(type, values);
      pointers.bias = bias->data();
    }
    if (c.lengths) {
      for (i64 i = 0; i < c.batch; ++i) {
        q_lengths.push_back(static_cast<int>(i == 0 ? c.q_len : std::max<i64>(1, c.q_len - 7 * i)));
        kv_lengths.push_back(static_cast<int>(i == 0 ? c.kv_len : c.kv_len / (i + 1)));
        if (c.causal == bottom_right) q_lengths.back() = std::min(q_lengths.back(), kv_lengths.back());
      }
      constexpr i64 gap = 64;  // ints: keeps the second array aligned
      CUDA(cudaMalloc(&device_lengths, 2 * gap * sizeof(int)));
      CUDA(cudaMemcpy(device_lengths, q_lengths.data(), c.batch * sizeof(int), cudaMemcpyHostToDevice));
      CUDA(cudaMemcpy(device_lengths + gap, kv_lengths.data(), c.batch * sizeof(int), cudaMemcpyHostToDevice));
      CUDA(cudaDeviceSynchronize());
      pointers.q_lengths = device_lengths;
      pointers.kv_lengths = device_lengths + gap;
    }
  }
  ~AttentionData() { static_cast<void>(cudaFree(device_lengths)); }

  i64 k_at() const { return a.heads * a.head_dim; }
  i64 v_at() const { return (a.heads + a.kv_heads) * a.head_dim; }

  // The largest |got - expected| of o, and of the statistics / 10: they are kept in float32 but of half products.
  double error() const {
    const auto at = [](const std::array<i64, 4>& strides, i64 b, i64 h, i64 s) {
      return b * strides[0] + h * strides[1] + s * strides[2];
    };
    const float* hq = q->host.data();
    const float* hk = k ? k->host.data() : hq + k_at();
    const float* hv = v ? v->host.data() : hq + v_at();
    const auto got = o->download(), got_stats = stats->download();
    double largest = 0;
    const auto compare = [&](double value, double wanted, double weight) {
      const double difference = std::abs(value - wanted) * weight;
      if (!(difference <= largest)) largest = std::isnan(difference) ? INFINITY : difference;
    };
    std::vector<double> scores(a.kv_len), sums(a.value_dim);
    for (i64 b = 0; b < a.batch; ++b)
      for (i64 h = 0; h < a.heads; ++h)
        for (i64 i = 0; i < a.q_len; ++i) {
          const i64 group = h / (a.heads / a.kv_heads);
          const i64 queries = a.lengths ? q_lengths[b] : a.q_len, keys = a.lengths ? kv_lengths[b] : a.kv_len;
          i64 end = keys;
          if (a.causal == top_left) end = std::min(keys, i + 1);
          if (a.causal == bottom_right) end = std::min(keys, i + 1 + keys - queries);
          if (i >= queries) end = 0;
          double peak = -INFINITY, total = 0;
          for (i64 j = 0; j < end; ++j) {
            double score = 0;
            for (i64 d = 0; d < a.head_dim; ++d)
              score += static_cast<double>(hq[at(a.q_strides, b, h, i) + d]) * hk[at(a.k_strides, b, group, j) + d];
            score *= a.scale;
            if (bias) {
              const auto pick = [&](int axis, i64 index) {
                return a.bias_dims[axis] > 1 ? index * a.bias_strides[axis] : 0;
              };
              score += bias->host[pick(0, b) + pick(1, h) + pick(2, i) + pick(3, j)];
            }
            scores[j] = score;
            peak = std::max(peak, score);
          }
          std::fill(sums.begin(), sums.end(), 0);
          for (i64 j = 0; j < end; ++j) {
            const double weight = std::exp(scores[j] - peak);
            total += weight;
            for (i64 d = 0; d < a.value_dim; ++d) sums[d] += weight * hv[at(a.v_strides, b, group, j) + d];
          }
          for (i64 d = 0; d < a.value_dim; ++d)
            compare(got[at(a.o_strides, b, h, i) + d], end > 0 ? sums[d] / total : 0, 1);
          if (end > 0) compare(got_stats[(b * a.heads + h) * a.q_len + i], peak + std::log(total), 0.1);
        }
    return largest;
  }
};

// Allocates what the plan needs, runs it and waits.
void attend(const AttentionData& data, const Plan& plan, cudaStream_t stream) {
  void* scratch = nullptr;
  CUDA(cudaMalloc(&scratch, std::max<std::size_t>(workspace(plan), 1)));
  run(plan, data.pointers, scratch, stream);
  CUDA(cudaStreamSynchronize(stream));
  CUDA(cudaFree(scratch));
}

// Half an ulp of outputs near 1, and the probabilities' rounding to the element type before the second product.
double attention_tolerance(DType type) { return type == DType::float16 ? 1e-3 : 8e-3; }

void check_attention(cudaStream_t stream) {
  for (const DType type : {DType::float16, DType::bfloat16})
    for (const Case& c : cases) {
      const std::string name = std::string("attention ") + dtype_name(type) + " " + c.name;
      try {
        const AttentionData data(c, type, -INFINITY);
        std::string why_not;
        const auto plan = attention_plan(data.a, stream, &why_not);
        if (!plan) {
          report(false, name + ": " + why_not);
          continue;
        }
        attend(data, *plan, stream);
        const double error = data.error();
        report(error <= attention_tolerance(type), name, error);
      } catch (const std::exception& error) {
        report(false, name + ": " + error.what());
      }
    }
}

void check_attention_uses(cudaStream_t stream) {
  std::string why_not;
  const auto refused = [&](const char* name, const Case& c, DType type) {
    const AttentionData data(c, type, -INFINITY);
    const bool ok = !attention_plan(data.a, stream, &why_not) && !why_not.empty();
    std::printf("      %s\n", why_not.c_str());
    report(ok, name);
  };
  refused("attention with head size 20 has no engine", {"", 1, 2, 2, 64, 64, 20, 20, full, no_bias}, DType::float16);
  refused("attention in float32 is refused", {"", 1, 2, 2, 64, 64, 64, 64, full, no_bias}, DType::float32);
  refused("attention bottom-right with a bias has no engine", {"", 1, 2, 2, 64, 64, 64, 64, bottom_right, {0, 1, 1, 1}},
          DType::float16);
  {
    AttentionData data({"", 1, 2, 2, 72, 72, 64, 64, top_left, no_bias}, DType::float16, 0);
    bool threw = false;
    CUDA(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
    try {
      attention_plan(data.a, stream, &why_not);
    } catch (const std::exception& error) {
      threw = true;
      std::printf("      %s\n", error.what());
    }
    cudaGraph_t graph;
    CUDA(cudaStreamEndCapture(stream, &graph));
    CUDA(cudaGraphDestroy(graph));
    report(threw, "attention new during capture is an error, the capture lives");

    const auto plan = attention_plan(data.a, stream, &why_not);
    if (!plan) return report(false, "attention captured: " + why_not);
    void* scratch = nullptr;
    CUDA(cudaMalloc(&scratch, std::max<std::size_t>(workspace(*plan), 1)));
    cudaGraphExec_t executable;
    CUDA(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
    run(*plan, data.pointers, scratch, stream);
    CUDA(cudaStreamEndCapture(stream, &graph));
    CUDA(cudaGraphInstantiate(&executable, graph, 0));
    data.q->host = random_values(data.q->host.size());
    for (float& value : data.q->host) value = rounded(DType::float16, value);
    data.q->upload();
    CUDA(cudaGraphLaunch(executable, stream));
    CUDA(cudaStreamSynchronize(stream));
    const double error = data.error();
    report(error <= attention_tolerance(DType::float16), "attention captured and replayed", error);
    CUDA(cudaGraphExecDestroy(executable));
    CUDA(cudaGraphDestroy(graph));
    CUDA(cudaFree(scratch));
  }
  // Plans are made on another thread while this one captures: neither may disturb the other.
  {
    AttentionData data({"", 1, 2, 2, 88, 88, 64, 64, full, no_bias}, DType::bfloat16, 0);
    Gemm g = model_product();
    g.m = 200;
    Operands o(g, 0, 0, false);
    std::string problem;
    void* other_workspace = nullptr;
    cudaStream_t other;
    CUDA(cudaMalloc(&other_workspace, gemm_workspace()));
    CUDA(cudaStreamCreateWithFlags(&other, cudaStreamNonBlocking));
    CUDA(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
    std::thread([&] {
      try {
        std::string why;
        if (!attention_plan(data.a, other, &why)) problem = why;
        gemm(o.gemm, other_workspace, gemm_workspace(), other);
      } catch (const std::exception& error) {
        problem = error.what();
      }
    }).join();
    cudaGraph_t graph = nullptr;
    const bool captured = cudaStreamEndCapture(stream, &graph) == cudaSuccess;
    if (graph) CUDA(cudaGraphDestroy(graph));
    CUDA(cudaStreamSynchronize(other));
    const double error = o.error(o.expected());
    report(captured && problem.empty() && error <= tolerance(g),
           "plans made and timed while another thread captures " + problem, error);
    CUDA(cudaStreamDestroy(other));
    CUDA(cudaFree(other_workspace));
  }
  // No promise, but good to know: what a wholly masked row becomes.
  for (const float masked : {-INFINITY, -60000.f}) {
    AttentionData data({"", 1, 1, 1, 64, 64, 64, 64, full, {0, 0, 1, 1}}, DType::float16, 0);
    for (i64 j = 0; j < 64; ++j) data.bias->host[j] = masked;
    data.bias->upload();
    if (const auto plan = attention_plan(data.a, stream, &why_not)) {
      attend(data, *plan, stream);
      std::printf("INFO  a row with a bias of %g everywhere: o %g %g, statistics %g\n", masked, data.o->download()[0],
                  data.o->download()[1], data.stats->download()[0]);
    }
  }
}

}  // namespace

int main() try {
  cudaStream_t stream;
  void* workspace = nullptr;
  CUDA(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  CUDA(cudaMalloc(&workspace, gemm_workspace()));
  check_products(stream, workspace);
  check_product_uses(stream, workspace);
  std::string why_not;
  const bool available = cudnn_available(&why_not);
  report(available, "cuDNN is available " + why_not);
  if (available) {
    check_attention(stream);
    check_attention_uses(stream);
  }
  std::printf("%d failures\n", failures);
  return std::min(failures, 99);
} catch (const std::exception& error) {
  std::printf("FAIL  %s\n", error.what());
  return 99;
}
