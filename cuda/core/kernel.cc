#include "core/kernel.h"

#include <cstdlib>
#include <exception>
#include <vector>

namespace ortops {
namespace {

// --- attributes

// ONNX Runtime tells an absent attribute from an ill-typed one by the text of its error alone.
bool absent(const std::string& message) { return message.find("No attribute with") != std::string::npos; }

class NodeAttributes final : public AttributeReader {
 public:
  NodeAttributes(const Ort& ort, const OrtKernelInfo* info) : ort_(ort), info_(info) {}

  bool read(const char* name, int64_t& value) override {
    return found(name, "an int", ort_.api->KernelInfoGetAttribute_int64(info_, name, &value));
  }
  bool read(const char* name, float& value) override {
    return found(name, "a float", ort_.api->KernelInfoGetAttribute_float(info_, name, &value));
  }
  bool read(const char* name, std::string& value) override {
    size_t size = 0;
    if (!found(name, "a string", ort_.api->KernelInfoGetAttribute_string(info_, name, nullptr, &size))) return false;
    value.resize(size);
    ort_.check(ort_.api->KernelInfoGetAttribute_string(info_, name, value.data(), &size));
    value.resize(size ? size - 1 : 0);  // the size counts the closing zero
    return true;
  }
  bool read(const char* name, IntList& value) override {
    return list(name, "a list of ints", ort_.api->KernelInfoGetAttributeArray_int64, value);
  }
  bool read(const char* name, FloatList& value) override {
    return list(name, "a list of floats", ort_.api->KernelInfoGetAttributeArray_float, value);
  }
  std::vector<Type> input_types() override {
    size_t count = 0;
    ort_.check(ort_.api->KernelInfo_GetInputCount(info_, &count));
    std::vector<Type> types(count, Type::none);
    for (size_t i = 0; i < count; ++i) {
      OrtTypeInfo* raw = nullptr;
      if (OrtStatus* status = ort_.api->KernelInfo_GetInputTypeInfo(info_, i, &raw)) {  // an absent input has none
        ort_.api->ReleaseStatus(status);
        continue;
      }
      const Owned<OrtTypeInfo> type(raw, ort_.api->ReleaseTypeInfo);
      const OrtTensorTypeAndShapeInfo* tensor = nullptr;
      ort_.check(ort_.api->CastTypeInfoToTensorInfo(raw, &tensor));
      ONNXTensorElementDataType element = ONNX_TENSOR_ELEMENT_DATA_TYPE_UNDEFINED;
      if (tensor) ort_.check(ort_.api->GetTensorElementType(tensor, &element));
      types[i] = static_cast<Type>(element);
    }
    return types;
  }

 private:
  template <class Get, class Number>
  bool list(const char* name, const char* expected, Get* get, List<Number>& value) const {
    size_t size = 0;
    if (!found(name, expected, get(info_, name, nullptr, &size))) return false;
    check_attribute(size <= std::size(value.values), name, "a shorter list", std::to_string(size) + " numbers");
    value.size = static_cast<int>(size);
    if (size) {
      ort_.check(get(info_, name, value.values, &size));
    } else {
      check_kind(name, expected);
    }
    return true;
  }
  // ONNX Runtime gives an attribute that is not a list of that kind as an empty one.
  void check_kind(const char* name, const char* expected) const {
    const auto has = [&](OrtStatus* status) {
      if (status) ort_.api->ReleaseStatus(status);
      return !status;
    };
    int64_t integer = 0;
    float real = 0;
    size_t size = 0, integers = 0, reals = 0;
    const char* got = nullptr;
    if (has(ort_.api->KernelInfoGetAttribute_int64(info_, name, &integer))) got = "an int";
    if (has(ort_.api->KernelInfoGetAttribute_float(info_, name, &real))) got = "a float";
    if (has(ort_.api->KernelInfoGetAttribute_string(info_, name, nullptr, &size))) got = "a string";
    if (has(ort_.api->KernelInfoGetAttributeArray_int64(info_, name, nullptr, &integers)) && integers)
      got = "a list of ints";
    if (has(ort_.api->KernelInfoGetAttributeArray_float(info_, name, nullptr, &reals)) && reals)
      got = "a list of floats";
    if (got) throw Error(std::string("attribute ") + name + ": expected " + expected + ", got " + got);
  }
  bool found(const char* name, const char* expected, OrtStatus* status) const {
    if (!status) return true;
    const std::string message = ort_.api->GetErrorMessage(status);
    ort_.api->ReleaseStatus(status);
    if (absent(message)) return false;
    throw Error(std::string("attribute ") + name + ": expected " + expected + ", got another type (" + message + ")");
  }

  const Ort& ort_;
  const OrtKernelInfo* info_;
};

class InferenceAttributes final : public AttributeReader {
 public:
  InferenceAttributes(const Ort& ort, const OrtShapeInferContext* context, const std::vector<Type>& types)
      : ort_(ort), context_(context), types_(types) {}

  bool read(const char* name, int64_t& value) override { return scalar(name, ORT_OP_ATTR_INT, value); }
  bool read(const char* name, float& value) override { return scalar(name, ORT_OP_ATTR_FLOAT, value); }
  bool read(const char* name, std::string& value) override {
    const OrtOpAttr* attribute = find(name);
    if (!attribute) return false;
    value.resize(256);
    size_t size = 0;  // where the text is longer, an error, and its size
    if (OrtStatus* status = ort_.api->ReadOpAttr(attribute, ORT_OP_ATTR_STRING, value.data(), value.size(), &size)) {
      ort_.api->ReleaseStatus(status);
      value.resize(size);
      ort_.check(ort_.api->ReadOpAttr(attribute, ORT_OP_ATTR_STRING, value.data(), value.size(), &size));
    }
    value.resize(size);
    while (!value.empty() && value.back() == '\0') value.pop_back();
    return true;
  }
  bool read(const char* name, IntList& value) override { return list(name, ORT_OP_ATTR_INTS, value); }
  bool read(const char* name, FloatList& value) override { return list(name, ORT_OP_ATTR_FLOATS, value); }
  std::vector<Type> input_types() override { return types_; }

 private:
  const OrtOpAttr* find(const char* name) const {
    const OrtOpAttr* attribute = nullptr;
    if (OrtStatus* status = ort_.api->ShapeInferContext_GetAttribute(context_, name, &attribute)) {
      ort_.api->ReleaseStatus(status);
      return nullptr;
    }
    return attribute;
  }
  template <class T>
  bool scalar(const char* name, OrtOpAttrType type, T& value) const {
    const OrtOpAttr* attribute = find(name);
    size_t size = 0;
    if (attribute) ort_.check(ort_.api->ReadOpAttr(attribute, type, &value, sizeof(value), &size));
    return attribute != nullptr;
  }
  template <class Number>
  bool list(const char* name, OrtOpAttrType type, List<Number>& value) const {
    const OrtOpAttr* attribute = find(name);
    size_t bytes = 0;
    if (!attribute) return false;
    ort_.check(ort_.api->ReadOpAttr(attribute, type, value.values, sizeof(value.values), &bytes));
    value.size = static_cast<int>(bytes / sizeof(Number));
    return true;
  }

  const Ort& ort_;
  const OrtShapeInferContext* context_;
  const std::vector<Type>& types_;
};

std::string node_name(const Ort& ort, const OrtKernelInfo* info) {
  size_t size = 0;
  if (OrtStatus* status = ort.api->KernelInfo_GetNodeName(info, nullptr, &size)) ort.api->ReleaseStatus(status);
  std::string name(size, '\0');
  if (size) ort.check(ort.api->KernelInfo_GetNodeName(info, name.data(), &size));
  name.resize(size ? size - 1 : 0);
  return name;
}

OrtMemoryInfo* cpu_memory(const Ort& ort) {
  OrtMemoryInfo* memory = nullptr;
  ort.check(ort.api->CreateCpuMemoryInfo(OrtDeviceAllocator, OrtMemTypeDefault, &memory));
  return memory;
}

OrtKernelInfo* copy_info(const Ort& ort, const OrtKernelInfo* info) {
  OrtKernelInfo* copy = nullptr;
  ort.check(ort.api->CopyKernelInfo(info, &copy));
  return copy;
}

}  // namespace

// --- one call

class OrtCall final : public Call {
 public:
  OrtCall(Kernel& kernel, OrtKernelContext* context) : kernel_(kernel), ort_(kernel.op_.ort), context_(context) {
    const OpInfo& info = *kernel.op_.row->op;
    size_t count = 0, outputs = 0;
    ort_.check(ort_.api->KernelContext_GetInputCount(context, &count));
    ort_.check(ort_.api->KernelContext_GetOutputCount(context, &outputs));
    outputs_ = static_cast<int>(outputs);
    shapes_.resize(count);
    pointers_.resize(count);
    data_.resize(count);
    for (size_t i = 0; i < count; ++i) {
      const OrtValue* value = nullptr;
      ort_.check(ort_.api->KernelContext_GetInput(context, i, &value));
      if (!value) continue;
      read_shape(value, info.inputs[std::min(i, info.inputs.size() - 1)].name, shapes_[i]);
      pointers_[i] = &shapes_[i];
      void* data = nullptr;
      ort_.check(ort_.api->GetTensorMutableData(const_cast<OrtValue*>(value), &data));
      data_[i] = data;
      if (!info.inputs[std::min(i, info.inputs.size() - 1)].host) value_ = value;
    }
    types = kernel.op_.row->types;
    input_shapes = {pointers_.data(), pointers_.size()};
    if (kernel.op_.row->device == Device::cuda)
      ort_.check(ort_.api->KernelContext_GetGPUComputeStream(context, &stream_));
  }

  ~OrtCall() {
    for (void* memory : scratch_) std::free(memory);
    if (allocator_) {
      for (void* memory : device_scratch_) ort_.api->ReleaseStatus(ort_.api->AllocatorFree(allocator_, memory));
      ort_.api->ReleaseAllocator(allocator_);
    }
  }

  const void* input(int index) override { return index < static_cast<int>(data_.size()) ? data_[index] : nullptr; }

  void* output(int index, const Shape& shape) override {
    if (index >= outputs_) return nullptr;
    const char* name = kernel_.op_.row->op->outputs[index].name;
    int64_t bytes = 8;  // or fewer, of an element
    bool fits = true, empty = false;
    for (int i = 0; i < shape.rank; ++i) {
      if (shape[i] < 0) throw Error(std::string(name) + ": its shape would be " + text(shape));
      empty = empty || shape[i] == 0;
      fits = fits && !__builtin_mul_overflow(bytes, shape[i], &bytes);
    }
    if (!fits && !empty)
      throw Error(std::string(name) + ": expected less than 2^60 elements, but its shape would be " + text(shape));
    OrtValue* value = nullptr;
    ort_.check(ort_.api->KernelContext_GetOutput(context_, index, shape.dims, shape.rank, &value));
    if (!value) return nullptr;
    value_ = value;
    void* data = nullptr;
    ort_.check(ort_.api->GetTensorMutableData(value, &data));
    return data;
  }

  void* stream() override { return stream_; }
  bool check_indices() override { return kernel_.op_.check_indices; }

  void* scratch(size_t bytes) override {
    bytes = (std::max<size_t>(bytes, 1) + 255) / 256 * 256;
    if (kernel_.op_.row->device == Device::cpu) {
      void* memory = std::aligned_alloc(256, bytes);
      if (!memory) throw std::bad_alloc();
      scratch_.push_back(memory);
      return memory;
    }
    // The scratch buffer belongs to this run's stream; memory of the plain allocator may be given to another stream as
    // soon as it is freed here, while our kernels still use it. Freed through the allocator, its chunk keeps the
    // stream.
    const OrtMemoryInfo* where = nullptr;
    ort_.check(ort_.api->GetTensorMemoryInfo(value_, &where));
    if (!allocator_) ort_.check(ort_.api->KernelContext_GetAllocator(context_, where, &allocator_));
    void* memory = nullptr;
    ort_.check(ort_.api->KernelContext_GetScratchBuffer(context_, where, bytes, &memory));
    if (!memory) throw std::bad_alloc();
    device_scratch_.push_back(memory);
    return memory;
  }

  void parallel_for(int64_t count, int64_t grain, FunctionRef<void(int64_t, int64_t)> f) override {
    constexpr int64_t kMostPieces = 64;
    const int64_t pieces =
        std::min(kMostPieces, (count + std::max<int64_t>(grain, 1) - 1) / std::max<int64_t>(grain, 1));
    if (pieces <= 1) {
      if (count > 0) f(0, count);
      return;
    }
    struct Work {
      FunctionRef<void(int64_t, int64_t)> f;
      int64_t count, pieces;
      std::mutex mutex;
      std::exception_ptr error;
    } work{f, count, pieces, {}, {}};
    ort_.check(ort_.api->KernelContext_ParallelFor(
        context_,
        [](void* data, size_t piece) {
          Work& work = *static_cast<Work*>(data);
          const int64_t i = static_cast<int64_t>(piece);
          try {
            work.f(work.count * i / work.pieces, work.count * (i + 1) / work.pieces);
          } catch (...) {
            std::lock_guard lock(work.mutex);
            if (!work.error) work.error = std::current_exception();
          }
        },
        static_cast<size_t>(pieces), 0, &work));
    if (work.error) std::rethrow_exception(work.error);
  }

  void gemm(const Gemm& gemm) override { kernel_.gemm_.run(context_, gemm); }

 private:
  void read_shape(const OrtValue* value, const char* name, Shape& shape) const {
    OrtTensorTypeAndShapeInfo* raw = nullptr;
    ort_.check(ort_.api->GetTensorTypeAndShape(value, &raw));
    Owned<OrtTensorTypeAndShapeInfo> info(raw, ort_.api->ReleaseTensorTypeAndShapeInfo);
    size_t rank = 0;
    ort_.check(ort_.api->GetDimensionsCount(raw, &rank));
    if (rank > kMaxRank) {
      throw Error(std::string(name) + ": expected at most " + std::to_string(kMaxRank) + " axes, got " +
                  std::to_string(rank));
    }
    shape.rank = static_cast<int>(rank);
    ort_.check(ort_.api->GetDimensions(raw, shape.dims, rank));
  }

  Kernel& kernel_;
  const Ort& ort_;
  OrtKernelContext* context_;
  void* stream_ = nullptr;
  int outputs_ = 0;
  const OrtValue* value_ = nullptr;  // any tensor of the call: it tells the memory that scratch must come from
  std::vector<Shape> shapes_;
  std::vector<const Shape*> pointers_;
  std::vector<const void*> data_;
  std::vector<void*> scratch_;
  std::vector<void*> device_scratch_;
  OrtAllocator* allocator_ = nullptr;
};

Kernel::Kernel(const CustomOp& op, const OrtKernelInfo* info)
    : op_(op), where_(std::string("ortops.") + op.row->op->name), gemm_(op.ort, info) {
  const std::string node = node_name(op.ort, info);
  if (!node.empty()) where_ += " (node " + node + ")";
  NodeAttributes reader(op.ort, info);
  try {
    attributes_ = op.row->op->parse(reader);
  } catch (const std::exception& error) {
    throw Error(where_ + ": " + error.what());
  }
}

Kernel::~Kernel() {
  if (attributes_) op_.row->op->release(attributes_);
}

void Kernel::run(OrtKernelContext* context) {
  try {
    OrtCall call(*this, context);
    op_.row->run(attributes_, call);
  } catch (const Error& error) {
    throw Error(where_ + ": " + error.what());
  } catch (const std::exception& error) {
    throw std::runtime_error(where_ + ": " + error.what());
  }
}

// --- ONNX Runtime's Gemm

GemmOps::GemmOps(const Ort& ort, const OrtKernelInfo* info)
    : ort_(ort),
      info_(copy_info(ort, info), ort.api->ReleaseKernelInfo),
      memory_(cpu_memory(ort), ort.api->ReleaseMemoryInfo) {}

GemmOps::~GemmOps() {
  for (auto& op : ops_) {
    if (OrtOp* made = op.load()) ort_.api->ReleaseOp(made);
  }
}

const OrtOp* GemmOps::get(bool w_transposed, bool has_bias) {
  std::atomic<OrtOp*>& slot = ops_[2 * w_transposed + has_bias];
  if (OrtOp* made = slot.load()) return made;
  std::lock_guard lock(mutex_);
  if (OrtOp* made = slot.load()) return made;
  const float one = 1;
  const int64_t zero = 0, transposed = w_transposed;
  std::vector<Owned<OrtOpAttr>> owned;
  std::vector<const OrtOpAttr*> attributes;
  const auto add = [&](const char* name, const void* data, OrtOpAttrType type) {
    OrtOpAttr* attribute = nullptr;
    ort_.check(ort_.api->CreateOpAttr(name, data, 1, type, &attribute));
    owned.emplace_back(attribute, ort_.api->ReleaseOpAttr);
    attributes.push_back(attribute);
  };
  add("alpha", &one, ORT_OP_ATTR_FLOAT);
  add("beta", &one, ORT_OP_ATTR_FLOAT);
  add("transA", &zero, ORT_OP_ATTR_INT);
  add("transB", &transposed, ORT_OP_ATTR_INT);
  const char* constraint = "T";
  const ONNXTensorElementDataType type = ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT;
  OrtOp* op = nullptr;
  // Version 13 is the start version of a kernel in every ONNX Runtime since 1.18; others are refused by some.
  ort_.check(ort_.api->CreateOp(info_.get(), "Gemm", "", 13, &constraint, &type, 1, attributes.data(),
                                static_cast<int>(attributes.size()), has_bias ? 3 : 2, 1, &op));
  slot.store(op);
  return op;
}

void GemmOps::run(const OrtKernelContext* context, const Gemm& gemm) {
  const OrtOp* op = get(gemm.w_transposed, gemm.bias != nullptr);
  const auto tensor = [&](const float* data, std::initializer_list<int64_t> shape) {
    int64_t count = 1;
    for (const int64_t size : shape) count *= size;
    OrtValue* value = nullptr;
    ort_.check(ort_.api->CreateTensorWithDataAsOrtValue(memory_.get(), const_cast<float*>(data), count * sizeof(float),
                                                        shape.begin(), shape.size(),
                                                        ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT, &value));
    return Owned<OrtValue>(value, ort_.api->ReleaseValue);
  };
  const auto x = tensor(gemm.x, {gemm.m, gemm.k});
  const auto w = gemm.w_transposed ? tensor(gemm.w, {gemm.n, gemm.k}) : tensor(gemm.w, {gemm.k, gemm.n});
  const auto y = tensor(gemm.y, {gemm.m, gemm.n});
  OrtValue* output = y.get();
  if (gemm.bias) {
    const auto bias = tensor(gemm.bias, {gemm.n});
    const OrtValue* inputs[] = {x.get(), w.get(), bias.get()};
    ort_.check(ort_.api->InvokeOp(context, op, inputs, 3, &output, 1));
  } else {
    const OrtValue* inputs[] = {x.get(), w.get()};
    ort_.check(ort_.api->InvokeOp(context, op, inputs, 2, &output, 1));
  }
}

// --- shape inference

namespace {

// A size that nothing is known of needs a name of its own: two unknown sizes that look alike count as equal.
std::string fresh_name() {
  static std::atomic<uint64_t> count{0};
  return "ortops_" + std::to_string(count++);
}

bool read_symbols(const Ort& ort, const OrtTensorTypeAndShapeInfo* info, BasicShape<Symbol>& shape) {
  size_t rank = 0;
  ort.check(ort.api->GetDimensionsCount(info, &rank));
  if (rank == 0 || rank > kMaxRank) return false;  // rank 0 may as well be an unknown rank, or an absent input
  int64_t sizes[kMaxRank];
  const char* names[kMaxRank];
  ort.check(ort.api->GetDimensions(info, sizes, rank));
  ort.check(ort.api->GetSymbolicDimensions(info, names, rank));
  shape.rank = static_cast<int>(rank);
  for (size_t i = 0; i < rank; ++i) {
    shape.dims[i].value = sizes[i];
    if (sizes[i] < 0) shape.dims[i].name = names[i] && *names[i] ? names[i] : fresh_name();
  }
  return true;
}

// ONNX Runtime asks the first row of an operator for all of them: this is the one that has the inputs' types.
const Row* row_of(const OpInfo& op, const std::vector<Type>& input_types) {
  for (const auto& rows : table()) {
    for (const Row& row : rows) {
      if (row.op != &op) continue;
      bool fits = true;
      for (size_t i = 0; i < input_types.size(); ++i) {
        const Type type = row.types[std::min(i, op.inputs.size() - 1)];
        fits = fits && (input_types[i] == Type::none || type == Type::none || input_types[i] == type);
      }
      if (fits) return &row;
    }
  }
  return nullptr;
}

}  // namespace

void infer_shapes(const CustomOp& op, OrtShapeInferContext* context) {
  const Ort& ort = op.ort;
  const OpInfo& info = *op.row->op;
  size_t count = 0;
  ort.check(ort.api->ShapeInferContext_GetInputCount(context, &count));
  std::vector<BasicShape<Symbol>> inputs(count), outputs(info.outputs.size());
  std::vector<const BasicShape<Symbol>*> pointers(count);
  std::vector<Type> types(count);
  for (size_t i = 0; i < count; ++i) {
    OrtTensorTypeAndShapeInfo* type_and_shape = nullptr;  // owned by the context
    ort.check(ort.api->ShapeInferContext_GetInputTypeShape(context, i, &type_and_shape));
    ONNXTensorElementDataType type = ONNX_TENSOR_ELEMENT_DATA_TYPE_UNDEFINED;
    ort.check(ort.api->GetTensorElementType(type_and_shape, &type));
    types[i] = static_cast<Type>(type);
    if (read_symbols(ort, type_and_shape, inputs[i])) pointers[i] = &inputs[i];
  }
  const Row* row = row_of(info, types);
  if (!row) return;
  InferenceAttributes reader(ort, context, types);
  const std::unique_ptr<void, void (*)(void*)> attributes(info.parse(reader), info.release);
  for (auto& output : outputs) output.rank = -1;
  Binder<Symbol> binder(pointers.data(), static_cast<int>(count), outputs.data());
  info.infer(attributes.get(), binder);
  for (size_t i = 0; i < outputs.size(); ++i) {
    // A node may leave optional outputs out, and nothing tells here whether it does: setting the shape of one that is
    // not there writes past the end of ONNX Runtime's list (1.24 to 1.27 abort). They stay without a shape until they
    // run.
    if (outputs[i].rank < 0 || info.outputs[i].optional) continue;
    OrtTensorTypeAndShapeInfo* raw = nullptr;
    ort.check(ort.api->CreateTensorTypeAndShapeInfo(&raw));
    const Owned<OrtTensorTypeAndShapeInfo> shape(raw, ort.api->ReleaseTensorTypeAndShapeInfo);
    int64_t sizes[kMaxRank];
    const char* names[kMaxRank];
    for (int d = 0; d < outputs[i].rank; ++d) {
      Symbol& symbol = outputs[i].dims[d];
      if (!is_set(symbol)) symbol.name = fresh_name();
      sizes[d] = symbol.value;
      names[d] = symbol.value >= 0 ? "" : symbol.name.c_str();
    }
    ort.check(
        ort.api->SetTensorElementType(raw, static_cast<ONNXTensorElementDataType>(row->types[info.inputs.size() + i])));
    ort.check(ort.api->SetDimensions(raw, sizes, outputs[i].rank));
    ort.check(ort.api->SetSymbolicDimensions(raw, names, outputs[i].rank));
    if (OrtStatus* status = ort.api->ShapeInferContext_SetOutputTypeShape(context, i, raw))
      ort.api->ReleaseStatus(status);
  }
}

}  // namespace ortops
