#include <cstdlib>

#include "gen/elementwise.h"
#include "ops/elementwise/geometry.h"

namespace ortops {
namespace elementwise {
namespace {

// For measuring only: the environment variable ORTOPS_ELEMENTWISE says "interpreter" or "compiled".
bool may_compile() {
  static const char* chosen = std::getenv("ORTOPS_ELEMENTWISE");
  return !chosen || std::string(chosen) != "interpreter";
}

void run_cuda(const Program& program, const std::vector<const void*>& xs, const std::vector<Shape>& shapes, void* y,
              Context& context) {
  if (program.is_double) {
    throw Error("xs: float64 is computed on the CPU alone; cast to float32 before the operator");
  }
  const Layout layout = layout_of(shapes);
  if (may_compile() && run_compiled(program, layout, xs, y, context)) return;
  if (interpret(program, layout, xs, y, context)) return;
  throw Error(
      "attribute expression: too long for the interpreter on CUDA; it takes 160 operations, 48 numbers and 5 "
      "axes that are not walked as one, and longer ones need the NVRTC library (nvidia-cuda-nvrtc)");
}

}  // namespace
}  // namespace elementwise

template <class R>
void elementwise_cuda(const ElementwiseArgs<R>& a, Context& context) {
  elementwise::check_type(*a.expression, kTypeOf<R>);
  elementwise::run_cuda(*a.expression, a.xs, a.X, a.y, context);
}

}  // namespace ortops
