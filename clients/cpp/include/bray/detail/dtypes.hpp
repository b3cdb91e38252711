// The types that an array's elements may have, by their names in bray's codec (docs/codec.md).
#pragma once

#include <complex>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "bray/errors.hpp"

#if defined(__BYTE_ORDER__) && __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "bray/detail/dtypes.hpp: expected a little-endian machine"
#endif

namespace bray {

/// A float of 16 bits as its bits: C++17 has no such type.
struct Half {
  std::uint16_t bits = 0;
};

namespace detail {

struct Dtype {
  std::string_view name;
  std::uint64_t bytes;
};
constexpr Dtype kDtypes[] = {{"|b1", 1}, {"|i1", 1}, {"<i2", 2}, {"<i4", 4}, {"<i8", 8},
                             {"|u1", 1}, {"<u2", 2}, {"<u4", 4}, {"<u8", 8}, {"<f2", 2},
                             {"<f4", 4}, {"<f8", 8}, {"<c8", 8}, {"<c16", 16}};
constexpr std::size_t kMaxDimensions = 32;

template <typename T>
constexpr std::string_view dtype_of() {
  if constexpr (std::is_same<T, bool>::value) return "|b1";
  else if constexpr (std::is_same<T, Half>::value) return "<f2";
  else if constexpr (std::is_same<T, std::complex<float>>::value) return "<c8";
  else if constexpr (std::is_same<T, std::complex<double>>::value) return "<c16";
  else {
    static_assert(std::is_arithmetic<T>::value && sizeof(T) <= 8,
                  "an array holds bool, integers, float, double, bray::Half or std::complex");
    constexpr std::string_view reals[] = {"<f4", "<f8"};
    constexpr std::string_view integers[] = {"|i1", "<i2", "<i4", "<i8"};
    constexpr std::string_view naturals[] = {"|u1", "<u2", "<u4", "<u8"};
    constexpr int log = sizeof(T) == 1 ? 0 : sizeof(T) == 2 ? 1 : sizeof(T) == 4 ? 2 : 3;
    if constexpr (std::is_floating_point<T>::value) return reals[log - 2];
    else return std::is_signed<T>::value ? integers[log] : naturals[log];
  }
}

/// Return the bytes that all elements of an array take. Throws Error, "bad_message".
inline std::uint64_t elements_size(std::string_view dtype,
                                   const std::vector<std::uint32_t>& shape) {
  std::uint64_t size = 0;
  for (const Dtype& known : kDtypes) {
    if (known.name == dtype) size = known.bytes;
  }
  if (size == 0) throw Error("bad_message", "an array of an unknown dtype");
  if (shape.size() > kMaxDimensions) {
    throw Error("bad_message",
                "expected at most 32 dimensions, got " + std::to_string(shape.size()));
  }
  for (const std::uint32_t length : shape) {
    if (length != 0 && size > std::numeric_limits<std::uint64_t>::max() / length) {
      throw Error("bad_message", "the shape of an array is too large");
    }
    size *= length;
  }
  return size;
}

/// Return the shape of so many values in a row. Throws Error, "bad_message".
inline std::vector<std::uint32_t> shape_of_row(std::size_t length) {
  if (length > std::numeric_limits<std::uint32_t>::max()) {
    throw Error("bad_message", "expected less than 2^32 values in a row");
  }
  return {static_cast<std::uint32_t>(length)};
}

}  // namespace detail
}  // namespace bray
