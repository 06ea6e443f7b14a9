// What the library shows the world: RegisterCustomOps for ONNX Runtime, and a description of itself.
#include <cstdio>
#include <map>
#include <mutex>

#include "core/kernel.h"

#define ORTOPS_EXPORT extern "C" __attribute__((visibility("default")))

namespace ortops {
namespace {

const CustomOp& self(const OrtCustomOp* op) { return *static_cast<const CustomOp*>(op); }
const OpInfo& info(const OrtCustomOp* op) { return *self(op).row->op; }
OrtCustomOpInputOutputCharacteristic characteristic(const Formal& formal) {
  return formal.variadic ? INPUT_OUTPUT_VARIADIC : formal.optional ? INPUT_OUTPUT_OPTIONAL : INPUT_OUTPUT_REQUIRED;
}

// Below 1.24, ONNX Runtime crashes in the shape inference of an operator that has optional inputs when one is absent.
bool may_infer(const Ort& ort, const OpInfo& info) {
  if (ort.runtime_minor >= 24) return true;
  for (const Formal& formal : info.inputs) {
    if (formal.optional) return false;
  }
  return true;
}

}  // namespace

CustomOp::CustomOp(const Ort& ort, const Row& row, std::string name, bool check_indices)
    : OrtCustomOp{}, ort(ort), row(&row), name(std::move(name)), check_indices(check_indices) {
  version = static_cast<uint32_t>(ort.version);
  GetName = [](const OrtCustomOp* op) { return self(op).name.c_str(); };
  GetExecutionProviderType = [](const OrtCustomOp* op) {
    return self(op).row->device == Device::cpu ? "CPUExecutionProvider" : "CUDAExecutionProvider";
  };
  GetInputTypeCount = [](const OrtCustomOp* op) { return info(op).inputs.size(); };
  GetInputType = [](const OrtCustomOp* op, size_t i) {
    return static_cast<ONNXTensorElementDataType>(self(op).row->types[i]);
  };
  GetOutputTypeCount = [](const OrtCustomOp* op) { return info(op).outputs.size(); };
  GetOutputType = [](const OrtCustomOp* op, size_t i) {
    return static_cast<ONNXTensorElementDataType>(self(op).row->types[info(op).inputs.size() + i]);
  };
  GetInputCharacteristic = [](const OrtCustomOp* op, size_t i) { return characteristic(info(op).inputs[i]); };
  GetOutputCharacteristic = [](const OrtCustomOp* op, size_t i) { return characteristic(info(op).outputs[i]); };
  GetInputMemoryType = [](const OrtCustomOp* op, size_t i) {
    return info(op).inputs[i].host ? OrtMemTypeCPUInput : OrtMemTypeDefault;
  };
  GetVariadicInputMinArity = [](const OrtCustomOp*) { return 1; };
  GetVariadicInputHomogeneity = [](const OrtCustomOp* op) {
    return static_cast<int>(self(op).row->types[info(op).inputs.size() - 1] != Type::none);
  };
  GetVariadicOutputMinArity = [](const OrtCustomOp*) { return 1; };
  GetVariadicOutputHomogeneity = [](const OrtCustomOp*) { return 1; };
  GetStartVersion = [](const OrtCustomOp*) { return 1; };
  GetEndVersion = [](const OrtCustomOp*) { return 1000; };
  CreateKernelV2 = [](const OrtCustomOp* op, const OrtApi* api, const OrtKernelInfo* node,
                      void** kernel) -> OrtStatusPtr {
    return guarded(api, [&] { *kernel = new Kernel(self(op), node); });
  };
  KernelComputeV2 = [](void* kernel, OrtKernelContext* context) -> OrtStatusPtr {
    auto* object = static_cast<Kernel*>(kernel);
    return guarded(object->ort().api, [&] { object->run(context); });
  };
  KernelDestroy = [](void* kernel) { delete static_cast<Kernel*>(kernel); };
  if (may_infer(ort, *row.op)) {
    InferOutputShapeFn = [](const OrtCustomOp* op, OrtShapeInferContext* context) -> OrtStatusPtr {
      return guarded(self(op).ort.api, [&] { infer_shapes(self(op), context); });
    };
  }
}

namespace {

// The operators as the sessions of one ONNX Runtime see them. It keeps pointers to them, so they are never destroyed.
class Registry {
 public:
  Registry(const Ort& ort, bool check_indices) : ort_(ort), check_indices_(check_indices) {}

  // All operators, or those of a list "Linear,Linear_2": ONNX Runtime takes some microseconds a row and name, which add
  // up when a session knows that it needs a few of them alone.
  OrtCustomOpDomain* domain(const std::string& list) {
    OrtCustomOpDomain*& domain = domains_[list];
    if (domain) return domain;
    OrtCustomOpDomain* made = nullptr;
    ort_.check(ort_.api->CreateCustomOpDomain("ortops", &made));
    const std::string wanted = "," + list + ",";
    for (const auto& rows : table()) {
      for (const Row& row : rows) {
        for (int variant = 1; variant <= row.op->variants; ++variant) {
          const std::string name = row.op->name + (variant == 1 ? "" : "_" + std::to_string(variant));
          if (!list.empty() && wanted.find("," + name + ",") == std::string::npos) continue;
          const auto [op, _] = ops_.try_emplace({&row, variant}, ort_, row, name, check_indices_);
          ort_.check(ort_.api->CustomOpDomain_Add(made, &op->second));
        }
      }
    }
    return domain = made;
  }

 private:
  const Ort ort_;
  const bool check_indices_;
  std::map<std::pair<const Row*, int>, CustomOp> ops_;
  std::map<std::string, OrtCustomOpDomain*> domains_;
};

OrtCustomOpDomain* domain_for(const Ort& ort, bool check_indices, const std::string& list) {
  static std::mutex mutex;
  static auto& registries = *new std::map<std::pair<const OrtApi*, bool>, Registry>;
  std::lock_guard lock(mutex);
  return registries.try_emplace({ort.api, check_indices}, ort, check_indices).first->second.domain(list);
}

// The value of a session option; empty where it is not set.
std::string session_option(const Ort& ort, const OrtSessionOptions* options, const char* key) {
  int has = 0;
  ort.check(ort.api->HasSessionConfigEntry(options, key, &has));
  if (!has) return {};
  size_t size = 0;  // with the closing zero
  if (OrtStatus* status = ort.api->GetSessionConfigEntry(options, key, nullptr, &size)) ort.api->ReleaseStatus(status);
  std::string value(size, '\0');
  if (size) ort.check(ort.api->GetSessionConfigEntry(options, key, value.data(), &size));
  value.resize(size ? size - 1 : 0);
  return value;
}

bool asks_to_check_indices(const Ort& ort, const OrtSessionOptions* options) {
  const char* key = "ortops.check_indices";
  const std::string text = session_option(ort, options, key);
  if (!text.empty() && text != "0" && text != "1")
    throw Error("ortops: session option " + std::string(key) + ": expected 0 or 1, got " + text);
  return text == "1";
}

}  // namespace
}  // namespace ortops

ORTOPS_EXPORT OrtStatus* ORT_API_CALL RegisterCustomOps(OrtSessionOptions* options, const OrtApiBase* base) {
  // The version is in the text "1.31.1"; asking for an interface that is too new would print an error.
  ortops::Ort ort;
  const char* runtime = base->GetVersionString();
  if (std::sscanf(runtime, "1.%d", &ort.runtime_minor) != 1 || ort.runtime_minor < ortops::kOldestVersion) {
    const OrtApi* oldest = base->GetApi(1);
    const std::string text = std::string("ortops: expected ONNX Runtime 1.") + std::to_string(ortops::kOldestVersion) +
                             " or newer, got " + runtime;
    return oldest ? oldest->CreateStatus(ORT_NOT_IMPLEMENTED, text.c_str()) : nullptr;
  }
  ort.version = std::min(ortops::kNewestVersion, ort.runtime_minor);
  ort.api = base->GetApi(static_cast<uint32_t>(ort.version));
  return ortops::guarded(ort.api, [&] {
    const bool check_indices = ortops::asks_to_check_indices(ort, options);
    const std::string names = ortops::session_option(ort, options, "ortops.operators");
    ort.check(ort.api->AddCustomOpDomain(options, ortops::domain_for(ort, check_indices, names)));
  });
}

// A description of the library as JSON. The text lives as long as the library.
ORTOPS_EXPORT const char* OrtopsBuildInfo() {
  static const std::string text = std::string("{\"version\": \"") + ORTOPS_VERSION + "\", \"declarations\": \"" +
                                  ortops::kDeclarations +
#ifdef ORTOPS_CUDA
                                  "\", \"cuda\": true, \"architectures\": \"" + ORTOPS_ARCHITECTURES +
#else
                                  "\", \"cuda\": false, \"architectures\": \"" +
#endif
                                  "\", \"variants\": " + std::to_string(ortops::kVariants) + "}";
  return text.c_str();
}
