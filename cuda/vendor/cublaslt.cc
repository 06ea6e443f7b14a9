#include "vendor/cublaslt.h"

#include <cuda_runtime_api.h>
#include <library_types.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <map>
#include <memory>
#include <mutex>
#include <sstream>
#include <stdexcept>
#include <string>
#include <vector>

#include "vendor/library.h"
#include "vendor/plan_cache.h"
#include "vendor/runtime.h"

namespace ortops::vendor {
namespace {

// The part of cublasLt.h that is used here; the values are the same in CUDA 12 and 13. The header itself comes only
// with the 400 MB of the library. Descriptors stay behind pointers: their sizes changed between releases.
using Status = int;
using Opaque = struct OpaqueObject*;

enum ComputeType : int { compute_32f = 68, compute_32f_fast_tf32 = 77 };
enum Operation : std::int32_t { operation_n = 0, operation_t = 1 };
enum DescriptorAttribute : int { desc_transpose_a = 3, desc_epilogue = 7, desc_bias_pointer = 8 };
enum LayoutAttribute : int { layout_batch_count = 5, layout_batch_stride = 6 };
enum PreferenceAttribute : int {
  pref_workspace = 1,
  pref_reductions = 3,
  pref_align_a = 5,
  pref_align_b = 6,
  pref_align_c = 7,
  pref_align_d = 8
};
// How the parts of a split product may be added up: in float32 only. By default they may be stored in the type of the
// result first, which costs bfloat16 another factor of eight in error (seen on an H200).
enum ReductionScheme : std::uint32_t { reduction_compute_type = 2 };
enum EpilogueFlag : std::int32_t { epilogue_default = 1, epilogue_bias = 4, epilogue_gelu = 32 };

struct Algorithm {
  std::uint64_t data[8];
};
struct Proposal {
  Algorithm algorithm;
  std::size_t workspace;
  Status state;
  float waves;
  int reserved[4];
};
static_assert(sizeof(Proposal) == 96);

struct Api {
  const char* (*status_name)(Status);
  Status (*create)(Opaque*);
  Status (*desc_create)(Opaque*, int compute, int scale);
  Status (*desc_destroy)(Opaque);
  Status (*desc_set)(Opaque, int attribute, const void*, std::size_t);
  Status (*layout_create)(Opaque*, int type, std::uint64_t rows, std::uint64_t columns, std::int64_t leading);
  Status (*layout_destroy)(Opaque);
  Status (*layout_set)(Opaque, int attribute, const void*, std::size_t);
  Status (*preference_create)(Opaque*);
  Status (*preference_destroy)(Opaque);
  Status (*preference_set)(Opaque, int attribute, const void*, std::size_t);
  Status (*propose)(Opaque handle, Opaque desc, Opaque a, Opaque b, Opaque c, Opaque d, Opaque preference, int wanted,
                    Proposal*, int* found);
  Status (*matmul)(Opaque handle, Opaque desc, const void* alpha, const void* a, Opaque a_layout, const void* b,
                   Opaque b_layout, const void* beta, const void* c, Opaque c_layout, void* d, Opaque d_layout,
                   const Algorithm*, void* workspace, std::size_t workspace_bytes, cudaStream_t);

  Api() {
    void* library = open_library(cuda_sonames("libcublasLt.so"), "ORTOPS_CUBLASLT", "nvidia-cublas");
    load_symbol(library, "cublasLtGetStatusName", status_name);
    load_symbol(library, "cublasLtCreate", create);
    load_symbol(library, "cublasLtMatmulDescCreate", desc_create);
    load_symbol(library, "cublasLtMatmulDescDestroy", desc_destroy);
    load_symbol(library, "cublasLtMatmulDescSetAttribute", desc_set);
    load_symbol(library, "cublasLtMatrixLayoutCreate", layout_create);
    load_symbol(library, "cublasLtMatrixLayoutDestroy", layout_destroy);
    load_symbol(library, "cublasLtMatrixLayoutSetAttribute", layout_set);
    load_symbol(library, "cublasLtMatmulPreferenceCreate", preference_create);
    load_symbol(library, "cublasLtMatmulPreferenceDestroy", preference_destroy);
    load_symbol(library, "cublasLtMatmulPreferenceSetAttribute", preference_set);
    load_symbol(library, "cublasLtMatmulAlgoGetHeuristic", propose);
    load_symbol(library, "cublasLtMatmul", matmul);
  }
};

// If the library is not found this throws, and looks again the next time: it may have been imported by then.
const Api& api() {
  static const Api loaded;
  return loaded;
}

std::string describe(const Gemm& g) {
  static constexpr const char* epilogues[] = {"none", "bias", "gelu_tanh", "gelu_tanh_bias"};
  std::ostringstream text;
  text << "product " << g.m << "x" << g.k << "x" << g.n << " (M x K x N), " << dtype_name(g.type)
       << (g.tf32 ? " by TF32" : "") << ", weight " << (g.weight_out_in ? "[N,K]" : "[K,N]") << ", epilogue "
       << epilogues[static_cast<int>(g.epilogue)] << (g.c ? ", residual" : "") << ", batch " << g.batch
       << ", leading dimensions x " << g.ldx << ", w " << g.ldw << ", c " << g.ldc << ", d " << g.ldd;
  return text.str();
}

void check(Status status, const char* call, const Gemm& g) {
  if (status != 0)
    throw std::runtime_error(std::string(call) + ": " + api().status_name(status) + " for the " + describe(g));
}

struct Destroy {
  Status (*destroy)(Opaque);
  // There is nothing to do about a descriptor that cannot be freed.
  void operator()(Opaque object) const { static_cast<void>(destroy(object)); }
};
using Object = std::unique_ptr<OpaqueObject, Destroy>;

// One handle serves all threads. Like the plans it is never destroyed: at exit the libraries may be gone before us.
Opaque handle_of(int device, const Gemm& g) {
  static auto& mutex = *new std::mutex;
  static auto& handles = *new std::map<int, Opaque>;
  std::lock_guard lock(mutex);
  Opaque& handle = handles[device];
  if (!handle) {
    RelaxedCapture relaxed;
    check(api().create(&handle), "cublasLtCreate", g);
  }
  return handle;
}

bool has_bias(Epilogue epilogue) { return epilogue == Epilogue::bias || epilogue == Epilogue::gelu_tanh_bias; }

std::int32_t epilogue_flags(Epilogue epilogue) {
  std::int32_t flags = has_bias(epilogue) ? epilogue_bias : 0;
  if (epilogue == Epilogue::gelu_tanh || epilogue == Epilogue::gelu_tanh_bias) flags |= epilogue_gelu;
  return flags ? flags : epilogue_default;
}

int cuda_type(DType type) {
  switch (type) {
    case DType::float32:
      return CUDA_R_32F;
    case DType::float16:
      return CUDA_R_16F;
    case DType::bfloat16:
      return CUDA_R_16BF;
  }
  throw std::logic_error("unknown element type");
}

// A descriptor a call: it holds the bias pointer, so it cannot be shared, and costs less than 0.1 us.
Object make_descriptor(const Gemm& g) {
  Opaque raw = nullptr;
  check(api().desc_create(&raw, g.tf32 ? compute_32f_fast_tf32 : compute_32f, CUDA_R_32F), "cublasLtMatmulDescCreate",
        g);
  Object desc(raw, {api().desc_destroy});
  const auto set = [&](int attribute, const auto& value) {
    check(api().desc_set(raw, attribute, &value, sizeof value), "cublasLtMatmulDescSetAttribute", g);
  };
  set(desc_transpose_a, std::int32_t{g.weight_out_in ? operation_t : operation_n});
  set(desc_epilogue, epilogue_flags(g.epilogue));
  if (has_bias(g.epilogue)) set(desc_bias_pointer, g.bias);
  return desc;
}

Object make_layout(const Gemm& g, std::int64_t rows, std::int64_t columns, std::int64_t leading,
                   std::int64_t batch_stride) {
  Opaque raw = nullptr;
  check(api().layout_create(&raw, cuda_type(g.type), rows, columns, leading), "cublasLtMatrixLayoutCreate", g);
  Object layout(raw, {api().layout_destroy});
  if (g.batch > 1) {
    const auto count = static_cast<std::int32_t>(g.batch);
    check(api().layout_set(raw, layout_batch_count, &count, sizeof count), "cublasLtMatrixLayoutSetAttribute", g);
    check(api().layout_set(raw, layout_batch_stride, &batch_stride, sizeof batch_stride),
          "cublasLtMatrixLayoutSetAttribute", g);
  }
  return layout;
}

// cuBLASLt thinks in columns: our row-major D[m,n] = X W is its D[n,m] with A = W and B = X, nothing transposed but a
// weight stored as [n,k].
struct Plan {
  Object w, x, c, d;
  Algorithm algorithm{};

  explicit Plan(const Gemm& g)
      : w(g.weight_out_in ? make_layout(g, g.k, g.n, g.ldw, g.stride_w) : make_layout(g, g.n, g.k, g.ldw, g.stride_w)),
        x(make_layout(g, g.k, g.m, g.ldx, g.stride_x)),
        c(g.c ? make_layout(g, g.n, g.m, g.ldc, g.stride_c) : make_layout(g, g.n, g.m, g.ldd, g.stride_d)),
        d(make_layout(g, g.n, g.m, g.ldd, g.stride_d)) {}
};

struct Call {
  const Gemm& gemm;
  int device;
  void* workspace;
  std::size_t workspace_bytes;
  cudaStream_t stream;
};

void multiply(const Call& call, const Plan& plan, const Algorithm& algorithm) {
  const Gemm& g = call.gemm;
  const float alpha = 1, beta = g.c ? g.beta : 0;
  const auto desc = make_descriptor(g);
  check(api().matmul(handle_of(call.device, g), desc.get(), &alpha, g.w, plan.w.get(), g.x, plan.x.get(), &beta,
                     g.c ? g.c : g.d, plan.c.get(), g.d, plan.d.get(), &algorithm, call.workspace, call.workspace_bytes,
                     call.stream),
        "cublasLtMatmul", g);
}

// Up to 16: no kernel loads more at once.
std::uint32_t alignment(const void* pointer) {
  const auto address = reinterpret_cast<std::uintptr_t>(pointer) | 16;
  return static_cast<std::uint32_t>(address & -address);
}

// The bias shares d's entry: cuBLASLt has no attribute for it, and both go through the epilogue.
std::array<std::uint32_t, 4> alignments(const Gemm& g) {
  const std::uint32_t d = std::min(alignment(g.d), has_bias(g.epilogue) ? alignment(g.bias) : 16u);
  return {alignment(g.w), alignment(g.x), g.c ? alignment(g.c) : d, d};
}

std::vector<Proposal> propose(const Call& call, const Plan& plan) {
  const Gemm& g = call.gemm;
  Opaque raw = nullptr;
  check(api().preference_create(&raw), "cublasLtMatmulPreferenceCreate", g);
  const Object preference(raw, {api().preference_destroy});
  const auto set = [&](int attribute, const auto& value) {
    check(api().preference_set(raw, attribute, &value, sizeof value), "cublasLtMatmulPreferenceSetAttribute", g);
  };
  const auto align = alignments(g);
  set(pref_workspace, std::uint64_t{call.workspace_bytes});
  set(pref_reductions, std::uint32_t{reduction_compute_type});
  set(pref_align_a, align[0]);
  set(pref_align_b, align[1]);
  set(pref_align_c, align[2]);
  set(pref_align_d, align[3]);

  std::vector<Proposal> proposals(8);
  int found = 0;
  const auto desc = make_descriptor(g);
  check(api().propose(handle_of(call.device, g), desc.get(), plan.w.get(), plan.x.get(), plan.c.get(), plan.d.get(),
                      raw, static_cast<int>(proposals.size()), proposals.data(), &found),
        "cublasLtMatmulAlgoGetHeuristic", g);
  proposals.resize(found);
  std::erase_if(proposals, [](const Proposal& proposal) { return proposal.state != 0; });
  if (proposals.empty()) throw std::runtime_error("cuBLASLt has no algorithm for the " + describe(g));
  return proposals;
}

class Event {
 public:
  Event() { check_cuda(cudaEventCreate(&event_), "cudaEventCreate"); }
  Event(const Event&) = delete;
  Event& operator=(const Event&) = delete;
  ~Event() { static_cast<void>(cudaEventDestroy(event_)); }
  operator cudaEvent_t() const { return event_; }

 private:
  cudaEvent_t event_ = nullptr;
};

// The fastest of the proposals by the best of three interleaved timings, the first of them (cuBLASLt's own choice)
// unless another beats it by more than the timing's noise.
Algorithm fastest(const Call& call, const Plan& plan, const std::vector<Proposal>& proposals) {
  constexpr int rounds = 3;
  constexpr float noise = 0.02f;
  // Loads the kernels' code, which would be timed with the first run of each otherwise.
  for (const Proposal& proposal : proposals) multiply(call, plan, proposal.algorithm);

  // A launch takes longer on the host than a small product on the GPU, and an idle GPU would measure the host. Filling
  // the workspace a hundred times (about 10 us each) keeps it busy until everything has been enqueued.
  constexpr int fills = 100;
  for (int i = 0; i < fills && call.workspace_bytes; ++i)
    check_cuda(cudaMemsetAsync(call.workspace, 0, call.workspace_bytes, call.stream), "cudaMemsetAsync");
  std::vector<Event> events(rounds * proposals.size() + 1);
  auto event = events.begin();
  check_cuda(cudaEventRecord(*event, call.stream), "cudaEventRecord");
  for (int round = 0; round < rounds; ++round)
    for (const Proposal& proposal : proposals) {
      multiply(call, plan, proposal.algorithm);
      check_cuda(cudaEventRecord(*++event, call.stream), "cudaEventRecord");
    }
  check_cuda(cudaEventSynchronize(*event), "cudaEventSynchronize");

  std::vector<float> times(proposals.size(), std::numeric_limits<float>::max());
  for (std::size_t i = 0; i + 1 < events.size(); ++i) {
    float milliseconds = 0;
    check_cuda(cudaEventElapsedTime(&milliseconds, events[i], events[i + 1]), "cudaEventElapsedTime");
    float& best = times[i % proposals.size()];
    best = std::min(best, milliseconds);
  }
  const auto best = std::min_element(times.begin(), times.end());
  return proposals[*best < (1 - noise) * times.front() ? best - times.begin() : 0].algorithm;
}

bool tuning_enabled() {
  static const bool enabled = [] {
    const char* value = std::getenv("ORTOPS_TUNE");
    return !value || std::strcmp(value, "0") != 0;
  }();
  return enabled;
}

// Everything that may change cuBLASLt's choice.
using Key = std::array<std::int64_t, 24>;

Key key_of(const Call& call, bool tuned) {
  const Gemm& g = call.gemm;
  const auto align = alignments(g);
  return {call.device,
          static_cast<std::int64_t>(g.type),
          static_cast<std::int64_t>(g.epilogue),
          g.m,
          g.n,
          g.k,
          g.ldx,
          g.ldw,
          g.c ? g.ldc : 0,
          g.ldd,
          g.batch,
          g.stride_x,
          g.stride_w,
          g.c ? g.stride_c : 0,
          g.stride_d,
          g.weight_out_in,
          g.tf32,
          g.c != nullptr,
          align[0],
          align[1],
          align[2],
          align[3],
          static_cast<std::int64_t>(call.workspace_bytes),
          tuned};
}

std::shared_ptr<const Plan> plan_of(const Call& call, bool tune) {
  static auto& plans = *new PlanCache<Key, std::shared_ptr<const Plan>>(512);
  Key key = key_of(call, tune);
  if (auto plan = plans.find(key)) return *plan;
  const bool in_place = call.gemm.c == call.gemm.d && call.gemm.beta != 0;
  if (tune && (in_place || is_capturing(call.stream))) key = key_of(call, tune = false);
  return plans.get(key, [&] {
    RelaxedCapture relaxed;
    auto plan = std::make_shared<Plan>(call.gemm);
    const auto proposals = propose(call, *plan);
    plan->algorithm = tune && proposals.size() > 1 ? fastest(call, *plan, proposals) : proposals.front().algorithm;
    return plan;
  });
}

}  // namespace

void gemm(const Gemm& gemm, void* workspace, std::size_t workspace_bytes, void* stream, bool tune) {
  if (has_bias(gemm.epilogue) != (gemm.bias != nullptr))
    throw std::logic_error("the epilogue and the bias pointer disagree in the " + describe(gemm));
  const Call call{gemm, current_device(), workspace, std::min(workspace_bytes, gemm_workspace()),
                  static_cast<cudaStream_t>(stream)};
  const auto plan = plan_of(call, tune && tuning_enabled());
  multiply(call, *plan, plan->algorithm);
}

}  // namespace ortops::vendor
