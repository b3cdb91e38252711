// What a policy is told and answers (docs/protocol.md, "Bodies of a policy"), in bray's codec.
//
//     std::string body = bray::Message()
//                            .array("observation", {0.1f, 0.2f, 0.3f, 0.4f})
//                            .number("reward", 1.0)
//                            .encode();
//     std::int64_t action = bray::read_integer(client.tick("game-1", body), "action");
//
// `decode` (codec.hpp, with this header) reads all else that a reply may hold.
#pragma once

#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "bray/codec.hpp"
#include "bray/errors.hpp"

namespace bray {

/// A map of names to values, written one after the other.
class Message {
 public:
  /// Add an array of one dimension.
  Message& array(std::string_view name, std::initializer_list<float> values) {
    return array(name, values.begin(), detail::shape_of_row(values.size()));
  }

  /// Add an array of one dimension; T as below.
  template <typename T>
  Message& array(std::string_view name, const std::vector<T>& values) {
    if constexpr (std::is_same<T, bool>::value) {
      return array(name, Array::of(values));
    } else {
      return array(name, values.data(), detail::shape_of_row(values.size()));
    }
  }

  /// Add an array of any shape, its last index fastest. T is what the policy's observation has (a
  /// Gymnasium Box mostly float); array.hpp lists the types.
  template <typename T>
  Message& array(std::string_view name, const T* values, const std::vector<std::uint32_t>& shape) {
    constexpr std::string_view dtype = detail::dtype_of<T>();
    const std::uint64_t size = detail::elements_size(dtype, shape);
    return add(name, [&] { detail::put_array(body_, dtype, shape, values, size); });
  }

  /// Add an array.
  Message& array(std::string_view name, const Array& values) {
    return add(name, [&] { detail::put_array(body_, values); });
  }

  /// Add a number, such as the reward.
  Message& number(std::string_view name, double value) {
    return add(name, [&] { detail::put_number(body_, value); });
  }

  /// Add an integer, such as one choice of an observation.
  Message& integer(std::string_view name, std::int64_t value) {
    return add(name, [&] { detail::put_integer(body_, value); });
  }

  /// Add true or false, such as whether the episode terminated.
  Message& flag(std::string_view name, bool value) {
    return add(name, [&] { detail::put_flag(body_, value); });
  }

  /// Add a text, such as a tag; UTF-8.
  Message& text(std::string_view name, std::string_view value) {
    return add(name, [&] { detail::put_text(body_, value); });
  }

  /// Add a map in the map: an observation of several arrays.
  Message& map(std::string_view name, const Message& inner) {
    return add(name, [&] { body_ += inner.encode(); });
  }

  /// Add a value of any kind, such as a list.
  Message& value(std::string_view name, const Value& value) {
    return add(name, [&] { detail::put_value(body_, value, detail::kMaxDepth - 1); });
  }

  /// The bytes that a request carries.
  std::string encode() const {
    std::string bytes;
    bytes.reserve(5 + body_.size());
    detail::put_map_head(bytes, size_);
    return bytes + body_;
  }

 private:
  /// Add a name and what `put` puts; what throws adds neither.
  template <typename Put>
  Message& add(std::string_view name, const Put& put) {
    const std::size_t before = body_.size();
    try {
      detail::put_text(body_, name);
      put();
    } catch (...) {
      body_.resize(before);
      throw;
    }
    ++size_;
    return *this;
  }

  std::string body_;
  std::uint64_t size_ = 0;
};

/// Read an integer of a map, such as a discrete action. Throws Error, "bad_message".
inline std::int64_t read_integer(std::string_view body, std::string_view name) {
  return decode(body, body.size()).at(name).integer();
}

/// Read an array of a map as one row of numbers, such as a continuous action (float) or several
/// discrete ones (std::int64_t). Throws Error, "bad_message", also where it holds another type.
template <typename T>
std::vector<T> read_array(std::string_view body, std::string_view name) {
  return decode(body, body.size()).at(name).array().template as<T>();
}

}  // namespace bray
