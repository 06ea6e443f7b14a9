// How an update is combined with what it is written into.
#pragma once

#include <cstdint>
#include <optional>

namespace ortops {

enum class Reduction { add, mul, min, max };

template <class Args>
Reduction reduction_of(const Args& a) {
  using Choice = typename Args::Reduction;
  return a.reduction == Choice::add   ? Reduction::add
         : a.reduction == Choice::mul ? Reduction::mul
         : a.reduction == Choice::min ? Reduction::min
                                      : Reduction::max;
}

// The index that a padding index names, from 0 on.
inline std::optional<int64_t> skipped(std::optional<int64_t> padding, int64_t size) {
  return padding && *padding < 0 ? *padding + size : padding;
}

}  // namespace ortops
