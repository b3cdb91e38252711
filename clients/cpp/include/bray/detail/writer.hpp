// Values as bytes of bray's codec (docs/codec.md), each in its shortest form.
#pragma once

#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>
#include <vector>

#include "bray/detail/dtypes.hpp"
#include "bray/errors.hpp"
#include "bray/frames.hpp"
#include "bray/value.hpp"

namespace bray::detail {

constexpr int kMaxDepth = 32;

inline void put_byte(std::string& to, unsigned byte) { to.push_back(static_cast<char>(byte)); }

inline void put_big(std::string& to, std::uint64_t value, int size) {
  for (int at = size - 1; at >= 0; --at) to.push_back(static_cast<char>(value >> (8 * at)));
}

/// Put a length behind the first of three types, for lengths of 1, 2 and 4 bytes.
inline void put_length(std::string& to, unsigned type, std::uint64_t length, bool has_one_byte) {
  if (length > 0xffffffffU) throw Error("bad_message", "a value of more than 4 GiB");
  const int log = length > 0xffff ? 2 : length > 0xff || !has_one_byte ? 1 : 0;
  put_byte(to, type + static_cast<unsigned>(log));
  put_big(to, length, 1 << log);
}

inline void put_list_head(std::string& to, std::uint64_t length) {
  if (length < 16) return put_byte(to, 0x90U | static_cast<unsigned>(length));
  put_length(to, 0xdb, length, false);  // dc, dd
}

inline void put_map_head(std::string& to, std::uint64_t length) {
  if (length < 16) return put_byte(to, 0x80U | static_cast<unsigned>(length));
  put_length(to, 0xdd, length, false);  // de, df
}

inline void put_text(std::string& to, std::string_view text) {
  if (!is_utf8(text)) throw Error("bad_message", "a text that is not UTF-8");
  if (text.size() < 32) {
    put_byte(to, 0xa0U | static_cast<unsigned>(text.size()));
  } else {
    put_length(to, 0xd9, text.size(), true);
  }
  to.append(text);
}

inline void put_binary(std::string& to, std::string_view bytes) {
  put_length(to, 0xc4, bytes.size(), true);
  to.append(bytes);
}

inline void put_flag(std::string& to, bool value) { put_byte(to, value ? 0xc3 : 0xc2); }

inline void put_number(std::string& to, double value) {
  std::uint64_t bits = 0;
  std::memcpy(&bits, &value, sizeof bits);
  put_byte(to, 0xcb);
  put_big(to, bits, 8);
}

inline void put_natural(std::string& to, std::uint64_t value) {
  if (value < 0x80) return put_byte(to, static_cast<unsigned>(value));
  const int log = value > 0xffffffffU ? 3 : value > 0xffff ? 2 : value > 0xff ? 1 : 0;
  put_byte(to, 0xccU + static_cast<unsigned>(log));
  put_big(to, value, 1 << log);
}

inline void put_integer(std::string& to, std::int64_t value) {
  const auto bits = static_cast<std::uint64_t>(value);
  if (value >= 0) return put_natural(to, bits);
  if (value >= -32) return put_byte(to, static_cast<unsigned>(bits & 0xffU));
  const int log = value < INT32_MIN ? 3 : value < INT16_MIN ? 2 : value < INT8_MIN ? 1 : 0;
  put_byte(to, 0xd0U + static_cast<unsigned>(log));
  put_big(to, bits, 1 << log);
}

/// Put an array; `size` is what its shape needs.
inline void put_array(std::string& to, std::string_view dtype,
                      const std::vector<std::uint32_t>& shape, const void* elements,
                      std::uint64_t size) {
  const std::uint64_t payload = 2 + dtype.size() + 4 * shape.size() + size;
  if (payload == 8 || payload == 16) {  // no array is shorter than 6 bytes
    put_byte(to, payload == 8 ? 0xd7 : 0xd8);
  } else {
    put_length(to, 0xc7, payload, true);
  }
  put_byte(to, 1);
  put_byte(to, static_cast<unsigned>(dtype.size()));
  to.append(dtype);
  put_byte(to, static_cast<unsigned>(shape.size()));
  for (const std::uint32_t length : shape) append_little(to, length, 4);
  if (size != 0) to.append(static_cast<const char*>(elements), size);
}

inline void put_array(std::string& to, const Array& array) {
  array.check();
  put_array(to, array.dtype, array.shape, array.elements.data(), array.elements.size());
}

/// Put a value that may have so many levels of lists and maps.
inline void put_value(std::string& to, const Value& value, int levels) {
  using Type = Value::Type;
  const bool has_levels = value.type() == Type::list || value.type() == Type::map;
  if (has_levels && levels == 0) throw Error("bad_message", "nested deeper than 32");
  switch (value.type()) {
    case Type::nil: return put_byte(to, 0xc0);
    case Type::flag: return put_flag(to, value.flag());
    case Type::integer: return put_integer(to, value.integer());
    case Type::natural: return put_natural(to, value.natural());
    case Type::number: return put_number(to, value.number());
    case Type::text: return put_text(to, value.text());
    case Type::binary: return put_binary(to, value.binary());
    case Type::array: return put_array(to, value.array());
    case Type::list:
      put_list_head(to, value.list().size());
      for (const Value& child : value.list()) put_value(to, child, levels - 1);
      return;
    case Type::map:
      put_map_head(to, value.map().size());
      for (const auto& [name, child] : value.map()) {
        put_text(to, name);
        put_value(to, child, levels - 1);
      }
  }
}

}  // namespace bray::detail
