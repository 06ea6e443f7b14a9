// Matrix products by cuBLASLt with what it can fuse into them.
#pragma once

#include <cstddef>
#include <cstdint>

#include "vendor/types.h"

namespace ortops::vendor {

// gelu_tanh is cuBLASLt's only GELU: the tanh form, not ONNX's default (erf), from which it differs by up to 5e-4.
// Its ReLU is not here: some of its kernels make 0 of NaN (seen in float16, cuBLASLt 13.0, H200).
enum class Epilogue { none, bias, gelu_tanh, gelu_tanh_bias };

// Row-major D[m,n] = epilogue(X[m,k] W + bias[n] + beta C[m,n]), `batch` times, summed in float32. All sizes are
// positive; leading dimensions and strides count elements. The bias is shared by the batch.
struct Gemm {
  std::int64_t m = 0, n = 0, k = 0;
  std::int64_t ldx = 0, ldw = 0, ldc = 0, ldd = 0;
  std::int64_t batch = 1;
  std::int64_t stride_x = 0, stride_w = 0, stride_c = 0, stride_d = 0;
  bool weight_out_in = false;  // W is [n,k], else [k,n]
  DType type = DType::float32;
  bool tf32 = false;  // lets float32 products use the tensor cores: 7 times faster, relative error 3e-4
  Epilogue epilogue = Epilogue::none;
  float beta = 1;  // not read without c
  const void* x = nullptr;
  const void* w = nullptr;
  const void* bias = nullptr;
  const void* c = nullptr;  // may be null, may be d
  void* d = nullptr;
};

// More than this no algorithm is offered; with less, fewer are (on an H200 the best ones used at most 2 MB).
constexpr std::size_t gemm_workspace() { return std::size_t{32} << 20; }

// Enqueues the product on `stream` (a cudaStream_t). The first call for a shape asks cuBLASLt for its proposals and,
// with `tune`, times them on the operands: d is overwritten, the workspace too, and the call waits for the stream. A
// shape is not timed while the stream is being captured, with c == d (the sum would be added several times), or in a
// process with ORTOPS_TUNE=0; then the first proposal is taken. The workspace is aligned to 256 bytes.
void gemm(const Gemm& gemm, void* workspace, std::size_t workspace_bytes, void* stream, bool tune = true);

}  // namespace ortops::vendor
