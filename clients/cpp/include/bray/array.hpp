// An array of a message: numbers of one type, in a shape.
#pragma once

#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "bray/detail/dtypes.hpp"
#include "bray/errors.hpp"

namespace bray {

/// An array of any shape; without dimensions it is one value, as numpy sends its scalars.
///
/// T, here and below, is bool, an integer of fixed size, float, double, Half, std::complex<float>
/// or std::complex<double>.
struct Array {
  std::string dtype;                 // "<f4" is float32; docs/codec.md lists them
  std::vector<std::uint32_t> shape;  // lengths of its dimensions
  std::string elements;              // their bytes, the last index fastest

  /// Return an array of one dimension.
  template <typename T>
  static Array of(const std::vector<T>& values) {
    std::vector<std::uint32_t> shape = detail::shape_of_row(values.size());
    if constexpr (std::is_same<T, bool>::value) {
      return {std::string(detail::dtype_of<T>()), std::move(shape),
              std::string(values.begin(), values.end())};
    } else {
      return of(values.data(), std::move(shape));
    }
  }

  /// Return an array of any shape, its last index fastest. Throws Error, "bad_message".
  template <typename T>
  static Array of(const T* values, std::vector<std::uint32_t> shape) {
    const std::uint64_t size = detail::elements_size(detail::dtype_of<T>(), shape);
    Array array{std::string(detail::dtype_of<T>()), std::move(shape), ""};
    if (size != 0) array.elements.assign(reinterpret_cast<const char*>(values), size);
    return array;
  }

  /// Return the elements as one row. Throws Error, "bad_message", where they have another type.
  template <typename T>
  std::vector<T> as() const {
    if (dtype != detail::dtype_of<T>()) {
      throw Error("bad_message", "expected an array of " + std::string(detail::dtype_of<T>()) +
                                     ", got one of " + dtype);
    }
    check();
    if constexpr (std::is_same<T, bool>::value) {
      return std::vector<bool>(elements.begin(), elements.end());
    } else {
      std::vector<T> values(elements.size() / sizeof(T));
      if (!values.empty()) std::memcpy(values.data(), elements.data(), elements.size());
      return values;
    }
  }

  /// Throws Error, "bad_message", where the three do not fit each other.
  void check() const {
    const std::uint64_t size = detail::elements_size(dtype, shape);
    if (size != elements.size()) {
      throw Error("bad_message", "an array whose shape needs " + std::to_string(size) +
                                     " bytes has " + std::to_string(elements.size()));
    }
    constexpr std::string_view bools("\0\1", 2);
    if (dtype == "|b1" && elements.find_first_not_of(bools) != elements.npos) {
      throw Error("bad_message", "a bool array has bytes that are neither 0 nor 1");
    }
  }
};

}  // namespace bray
