#ifdef ORTOPS_CUDA
#include "core/cuda.h"

#include <array>
#include <memory>
#include <mutex>

namespace ortops {

const DeviceProperties& device_properties() {
  static std::mutex mutex;
  static std::array<std::unique_ptr<const DeviceProperties>, 64> known;
  int id = 0;
  ORTOPS_CUDA_CHECK(cudaGetDevice(&id));
  std::lock_guard lock(mutex);
  auto& properties = known.at(id);
  if (!properties) {
    DeviceProperties p = {};
    p.id = id;
    const auto ask = [id](cudaDeviceAttr attribute) {
      int value = 0;
      ORTOPS_CUDA_CHECK(cudaDeviceGetAttribute(&value, attribute, id));
      return value;
    };
    p.multiprocessors = ask(cudaDevAttrMultiProcessorCount);
    p.major = ask(cudaDevAttrComputeCapabilityMajor);
    p.minor = ask(cudaDevAttrComputeCapabilityMinor);
    p.shared_memory_per_block = ask(cudaDevAttrMaxSharedMemoryPerBlockOptin);
    properties = std::make_unique<const DeviceProperties>(p);
  }
  return *properties;
}

IndexReport::IndexReport(Context& context) : context_(context) {
  if (!context.check_indices()) return;
  cudaStreamCaptureStatus capture = cudaStreamCaptureStatusNone;
  ORTOPS_CUDA_CHECK(cudaStreamIsCapturing(stream_of(context), &capture));
  if (capture != cudaStreamCaptureStatusNone)
    return;  // a replay cannot raise an error: the runs before the capture did
  device_ = static_cast<int64_t*>(context.scratch(2 * sizeof(int64_t)));
  ORTOPS_CUDA_CHECK(cudaMemsetAsync(device_, 0, 2 * sizeof(int64_t), stream_of(context)));
}

std::optional<int64_t> IndexReport::read() const {
  if (!device_) return {};
  int64_t report[2] = {};
  ORTOPS_CUDA_CHECK(cudaMemcpyAsync(report, device_, sizeof(report), cudaMemcpyDeviceToHost, stream_of(context_)));
  ORTOPS_CUDA_CHECK(cudaStreamSynchronize(stream_of(context_)));
  if (!report[0]) return {};
  return report[1];
}

void IndexReport::check(const char* input, int64_t size) const {
  if (const std::optional<int64_t> index = read()) throw_index_error(input, *index, size);
}

}  // namespace ortops
#endif
