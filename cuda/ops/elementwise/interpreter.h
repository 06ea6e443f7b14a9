// Elementwise on the CPU.
#pragma once

#include "ops/elementwise/program.h"

namespace ortops::elementwise {

void run_cpu(const Program& program, const std::vector<const void*>& xs, const std::vector<Shape>& shapes, void* y,
             Context& context);

}  // namespace ortops::elementwise
