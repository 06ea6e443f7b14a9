// How a launch covers the elements of a call; the same for the interpreter and for compiled expressions.
#pragma once

#include "core/cuda.h"
#include "device/index.h"
#include "ops/elementwise/device.cuh"
#include "ops/elementwise/layout.h"
#include "ops/elementwise/program.h"

namespace ortops::elementwise {

struct Tuning {
  static constexpr int kThreads = 256;
  static constexpr int kBytesInFlight = 64;  // that a thread of a compiled expression asks for before it computes
  static constexpr int kMostVectors = 4;
};

inline Divider divider(int64_t size) {
  Divider result = {};
  result.wide_size = size;
  if (size >> 31 == 0) {
    result.size = static_cast<uint32_t>(size);
    result.multiplier = size == 1 ? 0 : static_cast<uint32_t>((uint64_t(1) << 32) / size);
  }
  return result;
}

// How an input is read.
enum class Mode : uint8_t {
  scalar,  // one element for all
  whole,   // as the result is written
  along,   // by rows that begin where the outer axes say
  once,    // so, but one element a row
};

inline Mode mode_of(const Layout& layout, size_t input) {
  if (layout.is_scalar(input)) return Mode::scalar;
  if (layout.is_whole(input)) return Mode::whole;
  return layout.strides[input][layout.rank - 1] ? Mode::along : Mode::once;
}

// Whether vectors of `width` neighbours fall into rows, and have addresses that a load of them takes.
inline bool takes_vectors(const Program& program, const Layout& layout, const std::vector<const void*>& xs,
                          const void* y, int width) {
  if (layout.rank > 1 && layout.sizes[layout.rank - 1] % width != 0) return false;
  const auto aligned = [&](const void* data, Type type) {
    return reinterpret_cast<uintptr_t>(data) % std::min(16, width * bytes_of(type)) == 0;
  };
  for (size_t i = 0; i < xs.size(); ++i) {
    const Mode mode = mode_of(layout, i);
    if ((mode == Mode::whole || mode == Mode::along) && !aligned(xs[i], program.inputs[i])) return false;
  }
  return aligned(y, program.type);
}

// By the interpreter, which has limits: false where the program is beyond them.
bool interpret(const Program& program, const Layout& layout, const std::vector<const void*>& xs, void* y,
               Context& context);
// By code that is compiled for it when it is first needed: false where that cannot be done, or not now.
bool run_compiled(const Program& program, const Layout& layout, const std::vector<const void*>& xs, void* y,
                  Context& context);

}  // namespace ortops::elementwise
