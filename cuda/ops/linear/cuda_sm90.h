// Linear on Hopper in one kernel; compiled where the architectures include 90 (ORTOPS_SM90).
#pragma once

#include "gen/linear.h"

namespace ortops::linear {

// Whether the kernel has this call, and is faster than cuBLASLt and a pass over the result.
template <class T>
bool sm90_takes(const LinearArgs<T>& a);
template <class T>
void sm90(const LinearArgs<T>& a, Context& context);

}  // namespace ortops::linear
