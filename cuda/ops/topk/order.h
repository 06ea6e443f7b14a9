// In what order values are selected: as unsigned integers, the larger the better. NaN counts as the largest value and
// -0 as 0; of equal values the one with the lower index is better, so that an element and its index together, packed
// into one integer, have no equals.
#pragma once

#include <cmath>
#include <cstdint>
#include <type_traits>

#include "device/types.h"

namespace ortops {

template <class T>
constexpr bool is_float =
    std::is_same_v<T, float> || std::is_same_v<T, double> || std::is_same_v<T, float16> || std::is_same_v<T, bfloat16>;

// What values are compared as: 16-bit floats as float, short integers as int32.
template <class T>
using Compared = std::conditional_t<
    is_float<T>, Compute<T>,
    std::conditional_t<sizeof(T) == 8, int64_t, std::conditional_t<std::is_same_v<T, uint32_t>, int64_t, int32_t>>>;

template <class V>
using KeyOf = std::conditional_t<sizeof(V) == 8, uint64_t, uint32_t>;

template <class T>
ORTOPS_HOST_DEVICE Compared<T> compared(T value) {
  if constexpr (is_float<T>) {
    return to_compute(value);
  } else {
    return value;
  }
}

template <class T>
using BitsOf = std::conditional_t<
    sizeof(T) == 8, uint64_t,
    std::conditional_t<sizeof(T) == 4, uint32_t, std::conditional_t<sizeof(T) == 2, uint16_t, uint8_t>>>;

template <class T>
constexpr BitsOf<T> kTopBit = BitsOf<T>(BitsOf<T>(1) << (8 * sizeof(T) - 1));

// What turns a value's bits so that the larger is the better: nothing, or what reverses the order where the smallest
// are wanted.
template <class T>
ORTOPS_HOST_DEVICE BitsOf<T> turn(bool largest) {
  return largest ? 0 : is_float<T> ? kTopBit<T> : BitsOf<T>(~BitsOf<T>(0));
}
template <class T>
ORTOPS_HOST_DEVICE T oriented(T value, bool largest) {
  return detail::bit_cast<T>(BitsOf<T>(detail::bit_cast<BitsOf<T>>(value) ^ turn<T>(largest)));
}

// The oriented value that no other (but NaN) is worse than.
template <class T>
ORTOPS_HOST_DEVICE T worst() {
  if constexpr (is_float<T>) {
    return from_compute<T>(-Compute<T>(__builtin_huge_val()));
  } else {
    return std::is_signed_v<T> ? detail::bit_cast<T>(kTopBit<T>) : T(0);
  }
}

// The better of two oriented values; a NaN is passed over.
template <class V>
ORTOPS_HOST_DEVICE V better(V a, V b) {
  if constexpr (std::is_same_v<V, float>) {
    return fmaxf(a, b);
  } else {
    return b > a ? b : a;
  }
}

// The key of an oriented value.
template <class V>
ORTOPS_HOST_DEVICE KeyOf<V> key_of(V value, bool largest) {
  using Key = KeyOf<V>;
  if constexpr (is_float<V>) {
    const Key bits = detail::bit_cast<Key>(value + V(0));  // -0 becomes 0
    const Key key = bits & kTopBit<V> ? ~bits : bits | kTopBit<V>;
    return value == value ? key : largest ? ~Key(0) : 0;
  } else {
    return detail::bit_cast<Key>(value) ^ kTopBit<V>;
  }
}

// The keys of 16-bit floats have zeros, or where they are negative ones, below this bit: it tells no two of them apart.
template <class T>
constexpr int kLowestKeyBit = std::is_same_v<T, float16>    ? 13
                              : std::is_same_v<T, bfloat16> ? 16
                                                            : 0;

// The oriented value that has the key.
template <class V>
ORTOPS_HOST_DEVICE V value_of(KeyOf<V> key) {
  if constexpr (is_float<V>) {
    return detail::bit_cast<V>(KeyOf<V>(key & kTopBit<V> ? key ^ kTopBit<V> : ~key));
  } else {
    return detail::bit_cast<V>(KeyOf<V>(key ^ kTopBit<V>));
  }
}

// A key and, below it, an index of so many bits, the lower index being the larger.
template <class Key>
using Packed = std::conditional_t<sizeof(Key) == 8, unsigned __int128, uint64_t>;

template <class Key>
ORTOPS_HOST_DEVICE Packed<Key> pack(Key key, uint32_t index, int bits) {
  return Packed<Key>(key) << bits | (((uint64_t(1) << bits) - 1) - index);
}
template <class P>
ORTOPS_HOST_DEVICE uint32_t index_of(P packed, int bits) {
  const uint64_t mask = (uint64_t(1) << bits) - 1;
  return static_cast<uint32_t>(mask - (uint64_t(packed) & mask));
}

}  // namespace ortops
