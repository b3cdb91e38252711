// Values as bytes and back, in bray's codec (docs/codec.md).
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

#include "bray/detail/reader.hpp"
#include "bray/detail/writer.hpp"
#include "bray/errors.hpp"
#include "bray/value.hpp"

namespace bray {

constexpr std::size_t kMaxMessageBytes = 16 * 1024 * 1024;

/// Return a value as bytes.
///
/// Throws Error, "bad_message": it is nested deeper than 32, a text is not UTF-8, or an array's
/// shape does not fit its elements.
inline std::string encode(const Value& value) {
  std::string bytes;
  detail::put_value(bytes, value, detail::kMaxDepth);
  return bytes;
}

/// Return the value that bytes hold, whoever sent them. It keeps none of the bytes.
///
/// Throws Error, "bad_message": they are not exactly one value, are longer than `max_bytes`, are
/// nested deeper than 32 or hold more than 65,536 values (an array is one).
inline Value decode(std::string_view bytes, std::size_t max_bytes = kMaxMessageBytes) {
  if (bytes.size() > max_bytes) {
    throw Error("bad_message", "a message of " + std::to_string(bytes.size()) +
                                   " bytes exceeds max_bytes=" + std::to_string(max_bytes));
  }
  detail::Reader reader(bytes);
  Value value = reader.value(detail::kMaxDepth);
  if (!reader.is_at_end()) throw Error("bad_message", "bytes behind the end of the message");
  return value;
}

}  // namespace bray
