// Kernels whose start overlaps the end of the kernel before them (programmatic dependent launch, Hopper and later): the
// blocks are placed on the chip while the last ones of that kernel finish, and wait there. Between small kernels that
// is most of the gap.
//
// Such a kernel is a struct: its members are the parameters, operator() is the body, kMaxThreads and kMinBlocks are its
// launch bounds. The wait is in the only kernel that can be launched so, before the body; it ends when the kernel
// before has ended and what it wrote can be seen. A kernel that is launched in the ordinary way after this one waits
// for all of it, as ever. All this holds in a captured graph too.
#pragma once

#include <array>
#include <atomic>
#include <nv/target>

#include "core/cuda.h"

namespace ortops {
namespace detail {

template <class Body>
__global__ void __launch_bounds__(Body::kMaxThreads, Body::kMinBlocks) overlapped(const __grid_constant__ Body body) {
  NV_IF_TARGET(NV_PROVIDES_SM_90, (asm volatile("griddepcontrol.wait;" :: : "memory");))
  body();
}

// Whether the code that the driver chose for this device has the wait: on a Hopper chip it may have been made from PTX
// for an older one. Asked once a kernel and device.
template <class Body>
bool can_wait() {
  static std::array<std::atomic<int>, 64> known = {};  // the PTX version the code was compiled for
  const DeviceProperties& device = device_properties();
  std::atomic<int>& version = known.at(device.id);
  if (version == 0) {
    cudaFuncAttributes attributes;
    ORTOPS_CUDA_CHECK(cudaFuncGetAttributes(&attributes, reinterpret_cast<const void*>(overlapped<Body>)));
    version = attributes.ptxVersion;
  }
  return device.major >= 9 && version >= 90;
}

}  // namespace detail

template <class Body>
void launch_overlapped(const Body& body, dim3 blocks, dim3 threads, size_t shared, Context& context) {
  detail::launch(detail::can_wait<Body>(), detail::overlapped<Body>, blocks, threads, shared, context, body);
}

}  // namespace ortops
