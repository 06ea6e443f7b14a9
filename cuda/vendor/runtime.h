// What the wrappers of both libraries need from the CUDA runtime. Streams are cudaStream_t, passed as void*.
#pragma once

#include <string>

namespace ortops::vendor {

// Throws, naming the error, if `status` (a cudaError_t) is one.
void check_cuda(int status, const char* call);

int current_device();

bool is_capturing(void* stream);

// While one lives, this thread may create handles, load code and wait for events although another thread is capturing
// a CUDA graph; without it such calls fail and spoil the other's capture (ONNX Runtime captures in global mode).
class RelaxedCapture {
 public:
  RelaxedCapture();
  ~RelaxedCapture();
  RelaxedCapture(const RelaxedCapture&) = delete;
  RelaxedCapture& operator=(const RelaxedCapture&) = delete;

 private:
  int previous_;
};

}  // namespace ortops::vendor
