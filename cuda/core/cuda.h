// Launching kernels: every launch and every status of the CUDA runtime is checked here.
#pragma once

#include <cuda_runtime_api.h>

#include <algorithm>
#include <limits>
#include <optional>
#include <string>
#include <utility>

#include "core/op.h"

namespace ortops {

inline void check_cuda(cudaError_t status, const char* what) {
  if (status == cudaSuccess) return;
  throw std::runtime_error(std::string("CUDA: ") + what + ": " + cudaGetErrorName(status) + ": " +
                           cudaGetErrorString(status));
}
#define ORTOPS_CUDA_CHECK(call) ::ortops::check_cuda((call), #call)

inline cudaStream_t stream_of(Context& context) { return static_cast<cudaStream_t>(context.stream()); }

// What kernels are tuned by. Read once a device.
struct DeviceProperties {
  int id;
  int multiprocessors;
  int major, minor;
  int shared_memory_per_block;  // with opt-in
};
const DeviceProperties& device_properties();

// Blocks for a grid-stride loop over `count` items: enough to fill the chip, no more than there is work for.
inline int grid_stride_blocks(int64_t count, int threads, int blocks_per_multiprocessor = 16) {
  const int64_t needed = (count + threads - 1) / threads;
  return static_cast<int>(std::max<int64_t>(
      1, std::min<int64_t>(needed, int64_t(device_properties().multiprocessors) * blocks_per_multiprocessor)));
}

// Launches on the call's stream. `shared` is the dynamic shared memory in bytes, raised above 48 KiB where needed.
template <class... Parameters, class... Arguments>
void launch(void (*kernel)(Parameters...), dim3 blocks, dim3 threads, size_t shared, Context& context,
            Arguments&&... arguments) {
  if (shared > 48 * 1024) {
    ORTOPS_CUDA_CHECK(cudaFuncSetAttribute(reinterpret_cast<const void*>(kernel),
                                           cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(shared)));
  }
  cudaLaunchConfig_t config = {};
  config.gridDim = blocks;
  config.blockDim = threads;
  config.dynamicSmemBytes = shared;
  config.stream = stream_of(context);
  ORTOPS_CUDA_CHECK(cudaLaunchKernelEx(&config, kernel, std::forward<Arguments>(arguments)...));
}

// Launches a kernel that was compiled at run time; `parameter` points to its only one.
inline void launch(cudaKernel_t kernel, dim3 blocks, dim3 threads, Context& context, const void* parameter) {
  cudaLaunchConfig_t config = {};
  config.gridDim = blocks;
  config.blockDim = threads;
  config.stream = stream_of(context);
  void* parameters[] = {const_cast<void*>(parameter)};
  ORTOPS_CUDA_CHECK(cudaLaunchKernelExC(&config, reinterpret_cast<const void*>(kernel), parameters));
}

// Where a kernel reports an index outside of its table, in a session that asked for it (ortops.check_indices): null in
// one that did not. The kernel stores {1, index}; check() waits for it, and throws.
class IndexReport {
 public:
  explicit IndexReport(Context& context);
  int64_t* device() const { return device_; }
  std::optional<int64_t> read() const;  // waits
  void check(const char* input, int64_t size) const;

 private:
  Context& context_;
  int64_t* device_ = nullptr;
};

}  // namespace ortops
