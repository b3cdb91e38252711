// What a policy is told and answers (docs/protocol.md, "Bodies of a policy"), in bray's codec.
//
//     std::string body = bray::Message()
//                            .array("observation", {0.1f, 0.2f, 0.3f, 0.4f})
//                            .number("reward", 1.0)
//                            .encode();
//     std::int64_t action = bray::read_integer(client.tick("game-1", body), "action");
//
// For machines whose numbers are little-endian, as nearly all are.
#pragma once

#include <cstdint>
#include <cstring>
#include <initializer_list>
#include <string>
#include <string_view>
#include <vector>

#include "bray/detail/reader.hpp"
#include "bray/errors.hpp"

#if defined(__BYTE_ORDER__) && __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "bray/message.hpp: expected a little-endian machine"
#endif

namespace bray {

/// A map of names to arrays, numbers, flags and further maps, written one after the other.
class Message {
 public:
  /// Add an array of one dimension.
  Message& array(std::string_view name, std::initializer_list<float> values) {
    return array(name, values.begin(), {static_cast<std::uint32_t>(values.size())});
  }

  /// Add an array of one dimension; T as below.
  template <typename T>
  Message& array(std::string_view name, const std::vector<T>& values) {
    return array(name, values.data(), {static_cast<std::uint32_t>(values.size())});
  }

  /// Add an array of any shape, its last index fastest. T is float, double or an integer of fixed
  /// size; it is what the policy's observation has (a Gymnasium Box mostly float).
  template <typename T>
  Message& array(std::string_view name, const T* values, const std::vector<std::uint32_t>& shape) {
    key(name);
    const std::string_view dtype = detail::dtype_of<T>();
    std::size_t size = sizeof(T);
    for (const std::uint32_t length : shape) size *= length;
    detail::put_extension(body_, 2 + dtype.size() + 4 * shape.size() + size);
    body_.push_back(static_cast<char>(dtype.size()));
    body_.append(dtype);
    body_.push_back(static_cast<char>(shape.size()));
    for (const std::uint32_t length : shape) detail::put_little(body_, length);
    if (size != 0) body_.append(reinterpret_cast<const char*>(values), size);
    return *this;
  }

  /// Add a number, such as the reward.
  Message& number(std::string_view name, double value) {
    key(name);
    std::uint64_t bits = 0;
    std::memcpy(&bits, &value, sizeof bits);
    body_.push_back('\xcb');
    detail::put_big(body_, bits, 8);
    return *this;
  }

  /// Add true or false, such as whether the episode terminated.
  Message& flag(std::string_view name, bool value) {
    key(name);
    body_.push_back(value ? '\xc3' : '\xc2');
    return *this;
  }

  /// Add a text, such as a tag; UTF-8.
  Message& text(std::string_view name, std::string_view value) {
    key(name);
    string(value);
    return *this;
  }

  /// Add a map in the map: an observation of several arrays.
  Message& map(std::string_view name, const Message& inner) {
    key(name);
    body_ += inner.encode();
    return *this;
  }

  /// The bytes that a request carries.
  std::string encode() const {
    std::string bytes(1, '\xdf');
    detail::put_big(bytes, size_, 4);
    return bytes + body_;
  }

 private:
  void key(std::string_view name) {
    string(name);
    ++size_;
  }

  void string(std::string_view value) {
    body_.push_back('\xdb');
    detail::put_big(body_, value.size(), 4);
    body_.append(value);
  }

  std::string body_;
  std::uint32_t size_ = 0;
};

/// Read an integer of a map, such as a discrete action. Throws Error, "bad_message".
inline std::int64_t read_integer(std::string_view body, std::string_view name) {
  return detail::Reader::find(body, name).integer();
}

/// Read an array of a map as one row of numbers, such as a continuous action (float) or several
/// discrete ones (std::int64_t). Throws Error, "bad_message", also where it holds another type.
template <typename T>
std::vector<T> read_array(std::string_view body, std::string_view name) {
  const detail::Array array = detail::Reader::find(body, name).array();
  if (array.dtype != detail::dtype_of<T>()) {
    throw Error("bad_message", std::string(name) + ": expected an array of " +
                                   std::string(detail::dtype_of<T>()) + ", got " +
                                   std::string(array.dtype));
  }
  std::vector<T> values(array.elements.size() / sizeof(T));
  if (!values.empty()) std::memcpy(values.data(), array.elements.data(), array.elements.size());
  return values;
}

}  // namespace bray
