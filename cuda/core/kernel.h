// A node's kernel: its attributes, and the running of one call.
#pragma once

#include <array>
#include <atomic>
#include <mutex>

#include "core/ort.h"

namespace ortops {

// ONNX Runtime's own float32 matrix product on the CPU, made when it is first asked for. The objects are immutable, so
// any number of threads may use one at a time.
class GemmOps {
 public:
  GemmOps(const Ort& ort, const OrtKernelInfo* info);
  ~GemmOps();
  void run(const OrtKernelContext* context, const Gemm& gemm);

 private:
  const OrtOp* get(bool w_transposed, bool has_bias);

  Ort ort_;
  Owned<OrtKernelInfo> info_;
  Owned<OrtMemoryInfo> memory_;
  std::mutex mutex_;
  std::array<std::atomic<OrtOp*>, 4> ops_ = {};
};

class Kernel {
 public:
  Kernel(const CustomOp& op, const OrtKernelInfo* info);
  ~Kernel();
  void run(OrtKernelContext* context);

  // "Linear (node layer0/linear)", put before every error's text.
  const std::string& where() const { return where_; }
  const Ort& ort() const { return op_.ort; }

 private:
  friend class OrtCall;

  const CustomOp& op_;
  std::string where_;
  void* attributes_ = nullptr;
  GemmOps gemm_;
};

// Sets the output shapes, as far as they follow from the input shapes.
void infer_shapes(const CustomOp& op, OrtShapeInferContext* context);

}  // namespace ortops
