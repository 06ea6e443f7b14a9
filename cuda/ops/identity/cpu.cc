// Copies a tensor. The smallest kernel there can be: the one to start from when you write another.
#include <cstring>

#include "gen/identity.h"

namespace ortops {

template <class T>
void identity_cpu(const IdentityCopyArgs<T>& a, Context&) {
  std::memcpy(a.y, a.x, a.outer.size() * sizeof(T));
}

}  // namespace ortops
