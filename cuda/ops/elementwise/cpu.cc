#include "ops/elementwise/interpreter.h"

namespace ortops {

template <class R>
void elementwise_cpu(const ElementwiseArgs<R>& a, Context& context) {
  elementwise::check_type(*a.expression, kTypeOf<R>);
  elementwise::run_cpu(*a.expression, a.xs, a.X, a.y, context);
}

}  // namespace ortops
