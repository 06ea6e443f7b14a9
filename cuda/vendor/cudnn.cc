// The only file that includes NVIDIA's graph front end: 20 s and 1 GB to compile. It is header-only and calls 13
// functions of libcudnn (four more if compiled without optimisation, which keeps what is not used). They are defined
// here, as forwards to the library that is found at run time. The front end's own switch for dynamic loading is not
// used: with that it would also look for a CUDA runtime other than the one linked here, and read its structures by this
// one's layout.
#include "vendor/cudnn.h"

#include <cudnn_frontend.h>
#include <dlfcn.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <mutex>
#include <sstream>
#include <stdexcept>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "vendor/library.h"
#include "vendor/plan_cache.h"
#include "vendor/runtime.h"

namespace ortops::vendor {
namespace {

// If the library is not found this throws, and looks again the next time: it may have been imported by then.
void* cudnn_library() {
  static void* const library = open_library({"libcudnn.so.9"}, "ORTOPS_CUDNN", "nvidia-cudnn-cu13");
  return library;
}

}  // namespace
}  // namespace ortops::vendor

// Hidden, so that no other library of the process finds these instead of the real ones.
#define FORWARD(result, name, parameters, arguments)                                                 \
  extern "C" __attribute__((visibility("hidden"))) result name parameters {                          \
    using ortops::vendor::cudnn_library;                                                             \
    static const auto real =                                                                         \
        reinterpret_cast<result(*) parameters>(ortops::vendor::find_symbol(cudnn_library(), #name)); \
    return real arguments;                                                                           \
  }

FORWARD(size_t, cudnnGetVersion, (), ())
FORWARD(const char*, cudnnGetErrorString, (cudnnStatus_t status), (status))
FORWARD(void, cudnnGetLastErrorString, (char* message, size_t size), (message, size))
FORWARD(cudnnStatus_t, cudnnCreate, (cudnnHandle_t * handle), (handle))
FORWARD(cudnnStatus_t, cudnnDestroy, (cudnnHandle_t handle), (handle))
FORWARD(cudnnStatus_t, cudnnSetStream, (cudnnHandle_t handle, cudaStream_t stream), (handle, stream))
FORWARD(cudnnStatus_t, cudnnGetStream, (cudnnHandle_t handle, cudaStream_t* stream), (handle, stream))
FORWARD(cudnnStatus_t, cudnnBackendCreateDescriptor,
        (cudnnBackendDescriptorType_t type, cudnnBackendDescriptor_t* descriptor), (type, descriptor))
FORWARD(cudnnStatus_t, cudnnBackendDestroyDescriptor, (cudnnBackendDescriptor_t descriptor), (descriptor))
FORWARD(cudnnStatus_t, cudnnBackendFinalize, (cudnnBackendDescriptor_t descriptor), (descriptor))
FORWARD(cudnnStatus_t, cudnnBackendSetAttribute,
        (cudnnBackendDescriptor_t descriptor, cudnnBackendAttributeName_t name, cudnnBackendAttributeType_t type,
         int64_t count, const void* elements),
        (descriptor, name, type, count, elements))
FORWARD(cudnnStatus_t, cudnnBackendGetAttribute,
        (const cudnnBackendDescriptor_t descriptor, cudnnBackendAttributeName_t name, cudnnBackendAttributeType_t type,
         int64_t wanted, int64_t* count, void* elements),
        (descriptor, name, type, wanted, count, elements))
FORWARD(cudnnStatus_t, cudnnBackendExecute,
        (cudnnHandle_t handle, cudnnBackendDescriptor_t plan, cudnnBackendDescriptor_t pack), (handle, plan, pack))
#undef FORWARD

namespace ortops::vendor {

namespace fe = cudnn_frontend;

class Plan {
 public:
  fe::graph::Graph graph;
  std::int64_t workspace = 0;
  int device = 0;
  std::string name;  // for messages: the problem that it solves
};

namespace {

std::string last_error() {
  char text[1024] = "";
  cudnnGetLastErrorString(text, sizeof text);
  return text;
}

void check(cudnnStatus_t status, const char* call, const std::string& name) {
  if (status == CUDNN_STATUS_SUCCESS) return;
  throw std::runtime_error(std::string(call) + ": " + cudnnGetErrorString(status) + " for the " + name + ": " +
                           last_error());
}

// Handles belong to a device, carry a stream and must not be used by two threads at once: a thread borrows one for a
// call. As many exist as threads were ever inside one at once. They are never destroyed: at exit the libraries may be
// gone before us.
class Handle {
 public:
  Handle(int device, void* stream, const std::string& name) : idle_(pool(device)) {
    {
      std::lock_guard lock(mutex());
      if (!idle_.empty()) {
        handle_ = idle_.back();
        idle_.pop_back();
      }
    }
    if (!handle_) {
      RelaxedCapture relaxed;
      check(cudnnCreate(&handle_), "cudnnCreate", name);
    }
    const cudnnStatus_t status = cudnnSetStream(handle_, static_cast<cudaStream_t>(stream));
    if (status != CUDNN_STATUS_SUCCESS) {
      give_back();
      check(status, "cudnnSetStream", name);
    }
  }
  ~Handle() { give_back(); }
  Handle(const Handle&) = delete;
  Handle& operator=(const Handle&) = delete;
  operator cudnnHandle_t() const { return handle_; }

 private:
  static std::mutex& mutex() {
    static auto& mutex = *new std::mutex;
    return mutex;
  }
  static std::vector<cudnnHandle_t>& pool(int device) {
    static auto& pools = *new std::map<int, std::vector<cudnnHandle_t>>;
    std::lock_guard lock(mutex());
    return pools[device];
  }
  void give_back() {
    std::lock_guard lock(mutex());
    idle_.push_back(handle_);
  }

  std::vector<cudnnHandle_t>& idle_;
  cudnnHandle_t handle_ = nullptr;
};

// A plan, or why there is none.
struct Outcome {
  std::shared_ptr<const Plan> plan;
  std::string why_not;
};

// cuDNN writes a page about every engine that it tried. What stopped the first of them, such as a missing nvrtc, stands
// behind the first "Reason: "; the front end's own refusals are one line without it.
std::string first_reason(const std::string& page) {
  constexpr std::string_view mark = "Reason: ";
  const auto found = page.find(mark);
  const auto begin = found == std::string::npos ? 0 : found + mark.size();
  return page.substr(begin, page.find('\n', begin) - begin);
}

// Builds the graph with the heuristic's first engine: for attention the fastest of all in every case measured.
Outcome build(std::shared_ptr<Plan> plan, void* stream) {
  std::string problem;
  try {
    const Handle handle(plan->device, stream, plan->name);
    auto status = plan->graph.build(handle, {fe::HeurMode_t::A});
    if (status.is_good()) status = plan->graph.get_workspace_size(plan->workspace);
    if (status.is_good()) return {std::move(plan), ""};
    problem = status.get_message();
  } catch (const fe::cudnnException& error) {
    problem = error.what();
  }
  const auto version = cudnnGetVersion();
  std::ostringstream text;
  text << "cuDNN " << version / 10000 << '.' << version % 10000 / 100 << '.' << version % 100
       << " has no engine for the " << plan->name << ": " << first_reason(problem);
  return {nullptr, text.str()};
}

using Tensors = std::unordered_map<std::int64_t, void*>;

void execute(const Plan& plan, Tensors& tensors, void* workspace, void* stream) {
  const Handle handle(plan.device, stream, plan.name);
  auto status = plan.graph.execute(handle, tensors, workspace);
  if (status.is_bad())
    throw std::runtime_error("cuDNN cannot run the " + plan.name + ": " + status.get_message() + " (" + last_error() +
                             ")");
}

fe::DataType_t data_type(DType type) {
  switch (type) {
    case DType::float32:
      return fe::DataType_t::FLOAT;
    case DType::float16:
      return fe::DataType_t::HALF;
    case DType::bfloat16:
      return fe::DataType_t::BFLOAT16;
  }
  throw std::logic_error("unknown element type");
}

enum AttentionTensor : std::int64_t { id_q = 1, id_k, id_v, id_bias, id_q_lengths, id_kv_lengths, id_o, id_stats };

bool has_bias(const Attention& a) { return a.bias_dims[0] != 0; }

std::string describe(const Attention& a) {
  static constexpr const char* causal[] = {"", ", causal top-left", ", causal bottom-right"};
  std::ostringstream text;
  text << "attention of " << dtype_name(a.type) << ", batch " << a.batch << ", heads " << a.heads << " over "
       << a.kv_heads << ", positions " << a.q_len << " over " << a.kv_len << ", head size " << a.head_dim << " and "
       << a.value_dim << causal[static_cast<int>(a.causal)];
  if (has_bias(a)) {
    text << ", bias [";
    for (int i = 0; i < 4; ++i) text << (i ? "," : "") << a.bias_dims[i];
    text << "]";
  }
  text << (a.lengths ? ", lengths" : "") << (a.stats ? ", stats" : "");
  return text.str();
}

Outcome build_attention(const Attention& a, int device, void* stream) {
  auto plan = std::make_shared<Plan>();
  plan->device = device;
  plan->name = describe(a);
  auto& graph = plan->graph;
  graph.set_io_data_type(data_type(a.type))
      .set_intermediate_data_type(fe::DataType_t::FLOAT)
      .set_compute_data_type(fe::DataType_t::FLOAT);

  using Four = std::array<std::int64_t, 4>;
  const auto attributes = [](const char* name, std::int64_t id, const Four& dims, const Four& strides) {
    return fe::graph::Tensor_attributes()
        .set_name(name)
        .set_uid(id)
        .set_dim({dims.begin(), dims.end()})
        .set_stride({strides.begin(), strides.end()});
  };
  const auto q = graph.tensor(attributes("q", id_q, {a.batch, a.heads, a.q_len, a.head_dim}, a.q_strides));
  const auto k = graph.tensor(attributes("k", id_k, {a.batch, a.kv_heads, a.kv_len, a.head_dim}, a.k_strides));
  const auto v = graph.tensor(attributes("v", id_v, {a.batch, a.kv_heads, a.kv_len, a.value_dim}, a.v_strides));

  auto options = fe::graph::SDPA_attributes().set_name("attention").set_attn_scale(a.scale).set_generate_stats(a.stats);
  if (a.causal != Causal::none)
    options.set_diagonal_band_right_bound(0).set_diagonal_alignment(
        a.causal == Causal::top_left ? fe::DiagonalAlignment_t::TOP_LEFT : fe::DiagonalAlignment_t::BOTTOM_RIGHT);
  if (has_bias(a)) options.set_bias(graph.tensor(attributes("bias", id_bias, a.bias_dims, a.bias_strides)));
  if (a.lengths) {
    const auto lengths = [&](const char* name, std::int64_t id) {
      return graph.tensor(attributes(name, id, {a.batch, 1, 1, 1}, {1, 1, 1, 1}).set_data_type(fe::DataType_t::INT32));
    };
    options.set_padding_mask(true)
        .set_seq_len_q(lengths("q_lengths", id_q_lengths))
        .set_seq_len_kv(lengths("kv_lengths", id_kv_lengths));
  }

  const auto [o, stats] = graph.sdpa(q, k, v, options);
  o->set_output(true)
      .set_uid(id_o)
      .set_dim({a.batch, a.heads, a.q_len, a.value_dim})
      .set_stride({a.o_strides.begin(), a.o_strides.end()});
  if (a.stats) stats->set_output(true).set_uid(id_stats).set_data_type(fe::DataType_t::FLOAT);
  return build(std::move(plan), stream);
}

// Everything that a plan is made of: cuDNN puts all of it into the code it generates.
using Key = std::array<std::int64_t, 37>;

Key key_of(const Attention& a, int device) {
  std::int32_t scale_bits;
  static_assert(sizeof scale_bits == sizeof a.scale);
  std::memcpy(&scale_bits, &a.scale, sizeof a.scale);
  Key key{device,      static_cast<std::int64_t>(a.type),
          a.batch,     a.heads,
          a.kv_heads,  a.q_len,
          a.kv_len,    a.head_dim,
          a.value_dim, static_cast<std::int64_t>(a.causal),
          scale_bits,  a.lengths,
          a.stats};
  auto next = key.begin() + 13;
  for (const auto* four : {&a.q_strides, &a.k_strides, &a.v_strides, &a.o_strides, &a.bias_dims, &a.bias_strides})
    next = std::copy(four->begin(), four->end(), next);
  return key;
}

}  // namespace

bool cudnn_available(std::string* why_not) {
  try {
    cudnn_library();
  } catch (const std::runtime_error& error) {
    *why_not = error.what();
    return false;
  }
  if (const auto version = cudnnGetVersion(); version < 90000) {
    *why_not = "cuDNN 9 is needed, but the one that was found reports version " + std::to_string(version);
    return false;
  }
  return true;
}

std::size_t workspace(const Plan& plan) { return static_cast<std::size_t>(plan.workspace); }

std::shared_ptr<const Plan> attention_plan(const Attention& attention, void* stream, std::string* why_not) {
  static auto& plans = *new PlanCache<Key, Outcome>(512);
  if (!cudnn_available(why_not)) return nullptr;
  if (attention.type == DType::float32) {
    *why_not =
        "cuDNN rounds the factors of float32 attention to TF32, so it is not used for the " + describe(attention);
    return nullptr;
  }
  const int device = current_device();
  const Key key = key_of(attention, device);
  auto outcome = plans.find(key);
  if (!outcome) {
    if (is_capturing(stream))
      throw std::runtime_error(
          "no cuDNN plan yet for the " + describe(attention) +
          ", and none can be made while a CUDA graph is being captured: run these shapes once outside "
          "capture first");
    outcome = plans.get(key, [&] {
      RelaxedCapture relaxed;
      return build_attention(attention, device, stream);
    });
  }
  *why_not = outcome->why_not;
  return outcome->plan;
}

void run(const Plan& plan, const AttentionPointers& p, void* workspace, void* stream) {
  Tensors tensors;
  const auto add = [&](AttentionTensor id, const void* pointer) {
    if (!pointer) return;
    if (reinterpret_cast<std::uintptr_t>(pointer) % 16)
      throw std::runtime_error("a tensor is not aligned to 16 bytes for the " + plan.name);
    tensors.emplace(id, const_cast<void*>(pointer));
  };
  add(id_q, p.q);
  add(id_k, p.k);
  add(id_v, p.v);
  add(id_bias, p.bias);
  add(id_q_lengths, p.q_lengths);
  add(id_kv_lengths, p.kv_lengths);
  add(id_o, p.o);
  add(id_stats, p.stats);
  execute(plan, tensors, workspace, stream);
}

}  // namespace ortops::vendor
