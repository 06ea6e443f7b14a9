// Times LayerNorm and RMSNorm: what cuda/ops/norm/cuda.cu chooses, and its kernel in other layouts (threads a row,
// loads a thread, registers, when scale and bias are read), and one with a grid of blocks that stay, in which the next
// row is on its way while the present one is finished. Each is checked against float64 first. Then a chain of small
// norms with another kernel between them, with and without their starts overlapping its end. Times are of replayed
// graphs, rounds are interleaved: compare within a table only. What cuda.cu calls Tuning was chosen by this.
//
//   nvcc -std=c++20 -O3 -DNDEBUG -DORTOPS_CUDA=1 -arch=sm_90 --extended-lambda --expt-relaxed-constexpr -Icuda -Ibuild
//       tests/gpu/norm_tuning.cu cuda/core/cuda.cc -o norm_tuning
//
// (build/gen holds the generated headers). With -DORTOPS_NORM_BEFORE='"file"' also the kernel as it was: `start` of an
// earlier cuda.cu, in the namespace `ortops::before`.
#include "ops/norm/cuda.cu"

#include <cmath>
#include <cstdio>
#include <functional>
#include <random>
#include <string>
#include <vector>

#ifdef ORTOPS_NORM_BEFORE
#include ORTOPS_NORM_BEFORE
#endif

// Named: nvcc takes two unnamed namespaces, one inside the other's reach, for ambiguous.
namespace ortops::tuning {

constexpr double kBandwidth = 4.25e9;  // bytes a millisecond

class TestContext final : public Context {
 public:
  TestContext() { ORTOPS_CUDA_CHECK(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking)); }
  void* stream() override { return stream_; }
  void* scratch(size_t) override { throw std::logic_error("scratch"); }
  bool check_indices() override { return false; }
  void parallel_for(int64_t, int64_t, FunctionRef<void(int64_t, int64_t)>) override { throw std::logic_error("CPU"); }
  void gemm(const Gemm&) override { throw std::logic_error("CPU"); }

 private:
  cudaStream_t stream_;
};

// Memory on the device.
template <class T>
struct Buffer {
  explicit Buffer(int64_t count) : count(count) { ORTOPS_CUDA_CHECK(cudaMalloc(&data, count * sizeof(T))); }
  explicit Buffer(const std::vector<T>& values) : Buffer(values.size()) {
    ORTOPS_CUDA_CHECK(cudaMemcpy(data, values.data(), count * sizeof(T), cudaMemcpyHostToDevice));
  }
  ~Buffer() { cudaFree(data); }
  Buffer(const Buffer&) = delete;
  std::vector<T> values(int64_t most) const {
    std::vector<T> result(std::min(count, most));
    ORTOPS_CUDA_CHECK(cudaMemcpy(result.data(), data, result.size() * sizeof(T), cudaMemcpyDeviceToHost));
    return result;
  }
  int64_t count;
  T* data = nullptr;
};

// Row r of a grid of blocks that stay: r + gridDim, ... The loads of the next row are issued before the present one is
// reduced, scale and bias stay in registers.
template <class T, int kCount, bool kCenter, bool kResidual, int kThreads, int kBlocks>
struct Pipelined {
  static constexpr int kMaxThreads = kThreads, kMinBlocks = kBlocks;
  static constexpr int N = kWidth<T>;
  Tensors<T> t;

  __device__ __forceinline__ void operator()() const {
    const Share<N, true, int> share{static_cast<int>(t.size), static_cast<int>(threadIdx.x), kThreads};
    __shared__ Pair sums[2][kWarp], moments[2][kWarp];
    Vector<T, N> scale[kCount], bias[kCount], x[kCount], more[kCount];
    const auto read = [&](int64_t row) {
#pragma unroll
      for (int step = 0; step < kCount; ++step) {
        x[step] = share.template read<Reuse::none>(t.x + row * t.size, step);
        if constexpr (kResidual) more[step] = share.template read<Reuse::none>(t.residual + row * t.size, step);
      }
    };
    read(blockIdx.x);
#pragma unroll
    for (int step = 0; step < kCount; ++step) {
      scale[step] = share.template read<Reuse::constant>(t.scale, step);
      bias[step] = share.where(t.bias).template read<Reuse::constant>(t.bias, step);
    }
    int turn = 0;
    for (int64_t row = blockIdx.x; row < t.rows; row += gridDim.x, turn ^= 1) {
      Vector<float, N> v[kCount];
#pragma unroll
      for (int step = 0; step < kCount; ++step) {
        v[step] = to_float(x[step]);
        if constexpr (kResidual) add(v[step], to_float(more[step]));
      }
      if (row + gridDim.x < t.rows) read(row + gridDim.x);
      Pair moment = {0, 0};
#pragma unroll
      for (int step = 0; step < kCount; ++step) {
        if (t.sum) share.write(t.sum + row * t.size, step, from_float<T>(v[step]));
        Pair part = {0, 0};
#pragma unroll
        for (int i = 0; i < N; ++i) part.first += v[step][i], part.second += v[step][i] * v[step][i];
        moment = moment + part;
      }
      moment = block_reduce(moment, sums[turn]);
      float mean = kCenter ? moment.first * t.inverse : 0;
      float variance = moment.second * t.inverse - mean * mean, rest = 0;
      if (kCenter && !(mean * mean <= kMaxBias * variance && variance <= kMaxFloat)) {
        moment = {0, 0};
#pragma unroll
        for (int step = 0; step < kCount; ++step) {
#pragma unroll
          for (int i = 0; i < N; ++i) {
            const float d = share.has(step, i) ? v[step][i] - mean : 0.0f;
            moment = moment + Pair{d, d * d};
          }
        }
        moment = block_reduce(moment, moments[turn]);
        rest = moment.first / t.size;
        variance = Max()(moment.second / t.size - rest * rest, 0.0f);
      }
      const float rstd = rsqrtf(variance + t.epsilon);
#pragma unroll
      for (int step = 0; step < kCount; ++step) {
        const auto s = to_float(scale[step]), b = to_float(bias[step]);
        Vector<float, N> y;
#pragma unroll
        for (int i = 0; i < N; ++i) y[i] = (v[step][i] - mean - rest) * rstd * s[i] + b[i];
        share.write(t.y + row * t.size, step, from_float<T>(y));
      }
    }
  }
};

// What stands between two norms in a model, without its work: reads y, writes the next x.
__global__ void __launch_bounds__(256) between(const float16* from, float16* to, int count) {
  const Vector<float16, 8>* in = reinterpret_cast<const Vector<float16, 8>*>(from);
  for (int i = blockIdx.x * 256 + threadIdx.x; i < count / 8; i += gridDim.x * 256) {
    Vector<float, 8> v = to_float(in[i]);
    for (int k = 0; k < 8; ++k) v[k] = v[k] * 1.25f - 0.25f;
    reinterpret_cast<Vector<float16, 8>*>(to)[i] = from_float<float16>(v);
  }
}

struct Candidate {
  std::string name;
  std::function<void()> run;
  cudaGraphExec_t graph = nullptr;
  std::vector<float> times = {};
  std::string remark = {};
};

void capture(Candidate& candidate, int repeats, Context& context) {
  const cudaStream_t stream = stream_of(context);
  cudaGraph_t graph;
  ORTOPS_CUDA_CHECK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
  for (int i = 0; i < repeats; ++i) candidate.run();
  ORTOPS_CUDA_CHECK(cudaStreamEndCapture(stream, &graph));
  ORTOPS_CUDA_CHECK(cudaGraphInstantiate(&candidate.graph, graph, 0));
  ORTOPS_CUDA_CHECK(cudaGraphDestroy(graph));
}

void measure(std::vector<Candidate>& candidates, int repeats, double floor, Context& context) {
  constexpr int kRounds = 9;
  const cudaStream_t stream = stream_of(context);
  cudaEvent_t begin, end;
  ORTOPS_CUDA_CHECK(cudaEventCreate(&begin));
  ORTOPS_CUDA_CHECK(cudaEventCreate(&end));
  for (Candidate& candidate : candidates) {
    capture(candidate, repeats, context);
    ORTOPS_CUDA_CHECK(cudaGraphLaunch(candidate.graph, stream));
  }
  for (int round = 0; round < kRounds; ++round) {
    for (Candidate& candidate : candidates) {
      ORTOPS_CUDA_CHECK(cudaGraphLaunch(candidate.graph, stream));  // the clock is up, the caches are as it leaves them
      ORTOPS_CUDA_CHECK(cudaEventRecord(begin, stream));
      ORTOPS_CUDA_CHECK(cudaGraphLaunch(candidate.graph, stream));
      ORTOPS_CUDA_CHECK(cudaEventRecord(end, stream));
      ORTOPS_CUDA_CHECK(cudaEventSynchronize(end));
      float milliseconds;
      ORTOPS_CUDA_CHECK(cudaEventElapsedTime(&milliseconds, begin, end));
      candidate.times.push_back(milliseconds / repeats);
    }
  }
  for (Candidate& candidate : candidates) {
    auto& times = candidate.times;
    std::sort(times.begin(), times.end());
    std::printf("  %-34s %.5f ms (best %.5f)", candidate.name.c_str(), times[kRounds / 2], times.front());
    if (floor > 0) std::printf("  %.3f of the floor", times[kRounds / 2] / floor);
    std::printf("%s\n", candidate.remark.c_str());
    ORTOPS_CUDA_CHECK(cudaGraphExecDestroy(candidate.graph));
  }
  std::fflush(stdout);
  ORTOPS_CUDA_CHECK(cudaEventDestroy(begin));
  ORTOPS_CUDA_CHECK(cudaEventDestroy(end));
}

// Rows that are checked: ordinary ones, some of which have a mean that is large, or are constant, or have an outlier.
constexpr int64_t kChecked = 96;

template <class T, bool kCenter>
class Problem {
 public:
  Problem(int64_t rows, int64_t size, bool residual, bool sum, TestContext& context)
      : rows_(rows),
        size_(size),
        context_(context),
        x_(drawn(rows, 1)),
        residual_(drawn(residual ? rows : 1, 2)),
        scale_(drawn(1, 3)),
        bias_(drawn(1, 4)),
        y_(rows * size),
        sum_(sum ? rows * size : 1),
        mean_(rows),
        rstd_(rows) {
    const float inverse = 1.0f / size;
    t_ = {x_.data,     residual ? residual_.data : nullptr,
          scale_.data, kCenter ? bias_.data : nullptr,
          y_.data,     sum ? sum_.data : nullptr,
          nullptr,     nullptr,
          1e-5f,       inverse,
          rows,        size};
    floor_ = rows * size * sizeof(T) * (2.0 + residual + sum) / kBandwidth;
    std::printf("%s %ldx%ld fp%d%s%s, floor %.5f ms\n", kCenter ? "LayerNorm" : "RMSNorm", static_cast<long>(rows),
                static_cast<long>(size), static_cast<int>(sizeof(T) * 8), residual ? " + residual" : "",
                sum ? " with sum" : "", floor_);
    add("chosen", [this](const Tensors<T>& t) { start<kCenter>(t, context_); });
#ifdef ORTOPS_NORM_BEFORE
    add("before", [this](const Tensors<T>& t) {
      before::start<kCenter, T>(
          {t.x, t.residual, t.scale, t.bias, t.y, t.sum, t.mean, t.rstd, t.epsilon, t.rows, t.size}, context_);
    });
#endif
  }

  // The kernel of cuda.cu in another layout.
  template <int lanes, int loads, int threads, int blocks, bool early>
  void layout() {
    if (loads * (lanes > 0 ? lanes : threads) * kWidth<T> < size_) throw std::logic_error("too small a layout");
    const int rows = lanes > 0 ? threads / lanes : 1;
    add((lanes > 0 ? std::to_string(lanes) + " lanes" : "block") + " x " + std::to_string(loads) + ", " +
            std::to_string(threads) + " threads, " + std::to_string(blocks) + (early ? " early" : " late"),
        [this, rows](const Tensors<T>& t) {
          const auto run = [&](auto residual) {
            using Row = Held<T, loads, true, residual(), early>;
            launch_overlapped(Normalize<T, Row, kCenter, lanes, threads, blocks>{t}, narrow((t.rows + rows - 1) / rows),
                              threads, 0, context_);
          };
          t.residual ? run(std::true_type()) : run(std::false_type());
        });
  }

  template <int loads, int threads, int blocks>
  void pipelined() {
    add("pipelined x " + std::to_string(loads) + ", " + std::to_string(threads) + " threads, " + std::to_string(blocks),
        [this](const Tensors<T>& t) {
          const int grid = narrow(std::min<int64_t>(t.rows, int64_t(blocks) * device_properties().multiprocessors));
          if (t.residual) {
            launch_overlapped(Pipelined<T, loads, kCenter, true, threads, blocks>{t}, grid, threads, 0, context_);
          } else {
            launch_overlapped(Pipelined<T, loads, kCenter, false, threads, blocks>{t}, grid, threads, 0, context_);
          }
        });
  }

  void run() {
    for (size_t i = 0; i < candidates_.size(); ++i) check(i);
    measure(candidates_, rows_ * size_ > 10'000'000 ? 10 : 50, floor_, context_);
  }

 private:
  void add(std::string name, std::function<void(const Tensors<T>&)> run) {
    runs_.push_back(run);
    candidates_.push_back({std::move(name), [this, run] { run(t_); }});
  }

  std::vector<T> drawn(int64_t rows, uint32_t seed) {
    std::vector<T> values(rows * size_);
    std::mt19937 generator(seed);
    std::normal_distribution<float> normal;
    const int64_t fresh = std::min<int64_t>(values.size(), std::max<int64_t>(1 << 20, kChecked * size_));
    for (int64_t i = 0; i < fresh; ++i) {
      float value = normal(generator);
      const int64_t row = i / size_;
      if (seed == 1 && row % 16 == 3) value += 70;
      if (seed == 1 && row % 16 == 5) value = value * 0.01f + 1000;
      if (seed == 1 && row % 16 == 7) value = 987;
      if (seed == 1 && row % 16 == 9 && i % size_ == 0) value = 3000;
      if (seed == 1 && row % 16 == 11) value += 1.5f;
      if (seed == 1 && row >= kChecked) value = normal(generator);
      if (seed == 2 && row % 16 == 7) value = 1;
      values[i] = from_float<T>(value);
    }
    // Ordinary rows again and again, so that none of the many takes the longer way.
    const int64_t begin = std::min<int64_t>(kChecked * size_, fresh - size_), period = (fresh - begin) / size_ * size_;
    for (int64_t i = fresh; i < static_cast<int64_t>(values.size()); ++i)
      values[i] = values[begin + (i - begin) % period];
    return values;
  }

  void check(size_t index) {
    Tensors<T> t = t_;
    const bool pipelined = candidates_[index].name.starts_with("pipelined");
    if (!pipelined) t.rstd = rstd_.data;
    if (kCenter && !pipelined) t.mean = mean_.data;
    ORTOPS_CUDA_CHECK(cudaMemset(y_.data, 0xff, y_.count * sizeof(T)));
    ORTOPS_CUDA_CHECK(cudaMemset(sum_.data, 0xff, sum_.count * sizeof(T)));
    runs_[index](t);
    ORTOPS_CUDA_CHECK(cudaDeviceSynchronize());
    const int64_t checked = std::min(rows_, kChecked);
    const auto x = x_.values(checked * size_), residual = residual_.values(checked * size_),
               y = y_.values(checked * size_), scale = scale_.values(size_), bias = bias_.values(size_),
               sum = sum_.values(checked * size_);
    const auto means = mean_.values(checked), rstds = rstd_.values(checked);
    const double epsilon = sizeof(T) == 2 ? 0x1p-10 : 0x1p-23;
    double worst = 0, worst_sum = 0, worst_statistics = 0;
    bool exact = true;
    const auto note = [](double& worst, double error) {
      if (!(error <= worst)) worst = error;
    };
    std::vector<double> v(size_);
    for (int64_t row = 0; row < checked; ++row) {
      double mean = 0, variance = 0;
      for (int64_t i = 0; i < size_; ++i) {
        v[i] = to_float(x[row * size_ + i]);
        if (t.residual) v[i] += to_float(residual[row * size_ + i]);
        if (std::is_same_v<T, float>) v[i] = static_cast<float>(v[i]);
        mean += v[i] / size_;
      }
      if (!kCenter) mean = 0;
      for (double value : v) variance += (value - mean) * (value - mean) / size_;
      const double rstd = 1 / std::sqrt(variance + 1e-5);
      if (t.mean)
        note(worst_statistics, std::abs(means[row] - mean) / std::max(std::abs(mean), std::sqrt(variance + 1e-5)));
      if (t.rstd) note(worst_statistics, std::abs(rstds[row] - rstd) / rstd);
      for (int64_t i = 0; i < size_; ++i) {
        const double shift = kCenter ? to_float(bias[i]) : 0, got = to_float(y[row * size_ + i]);
        const double expected = (v[i] - mean) * rstd * to_float(scale[i]) + shift;
        note(worst, std::abs(got - expected) / (epsilon * std::max(std::abs(expected), 1.0)));
        if (t.sum)
          note(worst_sum, std::abs(to_float(sum[row * size_ + i]) - v[i]) / (epsilon * std::max(std::abs(v[i]), 1.0)));
        if (kCenter && row % 16 == 7) exact = exact && got == shift;
      }
    }
    bool complete = true;  // NaN where nothing was written
    const int64_t last = (rows_ - 1) * size_;
    std::vector<T> tail(size_);
    ORTOPS_CUDA_CHECK(cudaMemcpy(tail.data(), y_.data + last, size_ * sizeof(T), cudaMemcpyDeviceToHost));
    for (T value : tail) complete = complete && to_float(value) == to_float(value);
    const bool right =
        worst <= (sizeof(T) == 2 ? 1 : 8) && worst_sum <= 1 && worst_statistics <= 8 * 0x1p-23 && exact && complete;
    char text[160];
    std::snprintf(text, sizeof(text), "  error %.2f epsilon, statistics %.1f%s", worst, worst_statistics * 0x1p23,
                  right ? "" : "  WRONG");
    candidates_[index].remark = text;
  }

  int64_t rows_, size_;
  TestContext& context_;
  Buffer<T> x_, residual_, scale_, bias_, y_, sum_;
  Buffer<float> mean_, rstd_;
  Tensors<T> t_;
  double floor_;
  std::vector<Candidate> candidates_;
  std::vector<std::function<void(const Tensors<T>&)>> runs_;
};

template <class T, bool kCenter>
void large(bool residual, bool sum, TestContext& context) {
  Problem<T, kCenter> problem(16384, 4096, residual, sum, context);
  constexpr int k = sizeof(T) / 2;  // the loads of one thread fit twice as many halves
  problem.template layout<0, 4, 128 * k, 1, false>();
  problem.template layout<0, 4, 128 * k, 8 / k, false>();
  problem.template layout<0, 4, 128 * k, 1, true>();
  problem.template layout<0, 2, 256 * k, 1, false>();
  problem.template layout<0, 2, 256 * k, 6 / k, false>();
  problem.template layout<0, 2, 256 * k, 8 / k, false>();
  problem.template layout<0, 2, 256 * k, 1, true>();
  problem.template layout<0, 1, 512 * k, 1, false>();
  problem.template layout<0, 1, 512 * k, 4 / k, false>();
  problem.template layout<0, 1, 512 * k, 4 / k, true>();
  problem.template pipelined<4, 128 * k, 4 / k>();
  problem.template pipelined<2, 256 * k, 4 / k>();
  problem.template pipelined<2, 256 * k, 2 / k>();
  problem.template pipelined<1, 512 * k, 2 / k>();
  problem.run();
}

template <bool kCenter>
void small(bool residual, bool sum, TestContext& context) {
  Problem<float16, kCenter> problem(8192, 384, residual, sum, context);
  problem.template layout<8, 6, 128, 1, true>();
  problem.template layout<8, 6, 128, 1, false>();
  problem.template layout<16, 3, 128, 1, true>();
  problem.template layout<16, 3, 128, 8, true>();
  problem.template layout<16, 3, 128, 1, false>();
  problem.template layout<16, 3, 128, 8, false>();
  problem.template layout<16, 3, 64, 16, false>();
  problem.template layout<16, 3, 256, 4, false>();
  problem.template layout<32, 2, 128, 1, true>();
  problem.template layout<32, 2, 128, 1, false>();
  problem.template layout<32, 2, 128, 16, false>();
  problem.template layout<32, 2, 64, 1, false>();
  problem.run();
}

void tiny(TestContext& context) {
  Problem<float16, true> problem(1, 100, false, false, context);
  problem.run();
}

// Twelve times: another kernel, LayerNorm with residual.
void chain(TestContext& context) {
  constexpr int64_t rows = 8192, size = 384;
  std::vector<float16> values(rows * size);
  std::mt19937 generator(5);
  std::normal_distribution<float> normal;
  for (float16& value : values) value = from_float<float16>(normal(generator));
  Buffer<float16> x(values), residual(values), y(values);
  const Tensors<float16> t = {x.data,
                              residual.data,
                              residual.data,
                              residual.data + size,
                              y.data,
                              nullptr,
                              nullptr,
                              nullptr,
                              1e-5f,
                              1.0f / size,
                              rows,
                              size};
  using Body = Normalize<float16, Held<float16, 3, true, true, true>, true, 16, 128, 8>;
  std::vector<std::vector<float16>> results;
  std::vector<Candidate> candidates;
  const auto add = [&](const char* name, auto norm) {
    candidates.push_back({name, [&, norm] {
                            for (int i = 0; i < 12; ++i) {
                              launch(between, 264, 256, 0, context, static_cast<const float16*>(y.data), x.data,
                                     static_cast<int>(rows * size));
                              norm();
                            }
                          }});
  };
  add("other kernels alone", [] {});
  add("ordinary launches",
      [&] { detail::launch(false, detail::overlapped<Body>, rows / 8, 128, 0, context, Body{t}); });
  add("overlapped", [&] { launch_overlapped(Body{t}, rows / 8, 128, 0, context); });
  std::printf("12 x (other kernel, LayerNorm 8192x384 fp16 + residual), for all; overlap %s\n",
              detail::can_wait<Body>() ? "possible" : "NOT POSSIBLE: as ordinary launches");
  for (Candidate& candidate : candidates) {
    ORTOPS_CUDA_CHECK(cudaMemcpy(y.data, values.data(), values.size() * 2, cudaMemcpyHostToDevice));
    Candidate once = candidate;
    capture(once, 1, context);
    for (int i = 0; i < 5; ++i) ORTOPS_CUDA_CHECK(cudaGraphLaunch(once.graph, stream_of(context)));
    ORTOPS_CUDA_CHECK(cudaStreamSynchronize(stream_of(context)));
    ORTOPS_CUDA_CHECK(cudaGraphExecDestroy(once.graph));
    results.push_back(y.values(values.size()));
  }
  const bool same = std::equal(results[1].begin(), results[1].end(), results[2].begin(),
                               [](float16 a, float16 b) { return a.bits == b.bits; });
  candidates[2].remark = same ? "  same bits" : "  WRONG: other bits";
  measure(candidates, 4, 0, context);
}

}  // namespace ortops::tuning

int main() {
  using namespace ortops::tuning;
  try {
    TestContext context;
    large<ortops::float16, true>(false, false, context);
    large<ortops::float16, false>(false, false, context);
    large<ortops::float16, true>(true, true, context);
    large<float, true>(false, false, context);
    large<float, false>(false, false, context);
    large<float, true>(true, true, context);
    small<true>(false, false, context);
    small<false>(false, false, context);
    small<true>(true, false, context);
    small<true>(true, true, context);
    tiny(context);
    chain(context);
    return 0;
  } catch (const std::exception& error) {
    std::printf("FAILED: %s\n", error.what());
    return 1;
  }
}
