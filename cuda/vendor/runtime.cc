#include "vendor/runtime.h"

#include <cuda_runtime_api.h>

#include <stdexcept>

namespace ortops::vendor {

void check_cuda(int status, const char* call) {
  if (status == cudaSuccess) return;
  const auto error = static_cast<cudaError_t>(status);
  throw std::runtime_error(std::string(call) + ": " + cudaGetErrorName(error) + ", " + cudaGetErrorString(error));
}

int current_device() {
  int device = 0;
  check_cuda(cudaGetDevice(&device), "cudaGetDevice");
  return device;
}

bool is_capturing(void* stream) {
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  check_cuda(cudaStreamIsCapturing(static_cast<cudaStream_t>(stream), &status), "cudaStreamIsCapturing");
  return status != cudaStreamCaptureStatusNone;
}

RelaxedCapture::RelaxedCapture() {
  cudaStreamCaptureMode mode = cudaStreamCaptureModeRelaxed;
  check_cuda(cudaThreadExchangeStreamCaptureMode(&mode), "cudaThreadExchangeStreamCaptureMode");
  previous_ = mode;
}

RelaxedCapture::~RelaxedCapture() {
  // The exchange worked once on this thread and a destructor must not throw: the status has no use here.
  auto mode = static_cast<cudaStreamCaptureMode>(previous_);
  static_cast<void>(cudaThreadExchangeStreamCaptureMode(&mode));
}

}  // namespace ortops::vendor
