// Bray's codec (docs/codec.md) as bytes: what `message.hpp` writes, and a reader that trusts none.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <type_traits>

#include "bray/errors.hpp"

namespace bray {
namespace detail {

template <typename T>
constexpr std::string_view dtype_of() {
  static_assert(std::is_arithmetic<T>::value && !std::is_same<T, bool>::value && sizeof(T) <= 8,
                "an array holds float, double or integers");
  constexpr std::string_view reals[] = {"<f4", "<f8"};
  constexpr std::string_view integers[] = {"|i1", "<i2", "<i4", "<i8"};
  constexpr std::string_view naturals[] = {"|u1", "<u2", "<u4", "<u8"};
  constexpr int log = sizeof(T) == 1 ? 0 : sizeof(T) == 2 ? 1 : sizeof(T) == 4 ? 2 : 3;
  if constexpr (std::is_floating_point<T>::value) return reals[log - 2];
  else return std::is_signed<T>::value ? integers[log] : naturals[log];
}

inline void put_big(std::string& to, std::uint64_t value, int size) {
  for (int at = size - 1; at >= 0; --at) to.push_back(static_cast<char>(value >> (8 * at)));
}

inline void put_little(std::string& to, std::uint32_t value) {
  for (int at = 0; at < 4; ++at) to.push_back(static_cast<char>(value >> (8 * at)));
}

/// Begin an array whose payload has so many bytes.
inline void put_extension(std::string& to, std::uint64_t size) {
  if (size > 0xffffffffU) throw Error("bad_message", "an array of more than 4 GiB");
  to.push_back('\xc9');
  put_big(to, size, 4);
  to.push_back('\x01');
}

/// An array as it lies in a body.
struct Array {
  std::string_view dtype;
  std::string_view elements;
};

/// Reads one value after the other; whatever is not whole or not as asked is an Error.
class Reader {
 public:
  explicit Reader(std::string_view bytes) : left_(bytes) {}

  /// Return a reader at the value of a name of a map.
  static Reader find(std::string_view body, std::string_view name) {
    Reader reader(body);
    for (std::uint64_t pairs = reader.map_size(); pairs > 0; --pairs) {
      if (reader.text() == name) return reader;
      reader.skip(kMaxDepth);
    }
    throw bad("no " + std::string(name) + " in the message");
  }

  std::int64_t integer() {
    const unsigned type = byte();
    if (type < 0x80) return static_cast<std::int64_t>(type);
    if (type >= 0xe0) return static_cast<std::int64_t>(type) - 0x100;
    if (type >= 0xcc && type <= 0xcf) {
      const std::uint64_t value = big(1U << (type - 0xcc));
      if (value <= INT64_MAX) return static_cast<std::int64_t>(value);
    } else if (type >= 0xd0 && type <= 0xd3) {
      const unsigned size = 1U << (type - 0xd0);
      const unsigned shift = 64 - 8 * size;
      return static_cast<std::int64_t>(big(size) << shift) >> shift;
    }
    throw bad("expected an integer of 64 bits, got type " + std::to_string(type));
  }

  Array array() {
    const unsigned type = byte();
    if (!is_extension(type)) throw bad("expected an array, got type " + std::to_string(type));
    Reader payload(extension(type));
    const std::string_view dtype = payload.take(payload.byte());
    std::uint64_t size = dtype.empty() ? 0 : static_cast<std::uint64_t>(dtype.back() - '0');
    for (unsigned dimensions = payload.byte(); dimensions > 0; --dimensions) {
      const std::uint64_t length = payload.little();
      if (length != 0 && size > UINT64_MAX / length) throw bad("an array too large");
      size *= length;
    }
    if (size != payload.left_.size()) throw bad("an array of another size than its shape");
    return {dtype, payload.left_};
  }

 private:
  static constexpr int kMaxDepth = 32;

  static Error bad(const std::string& message) { return Error("bad_message", message); }
  static bool is_extension(unsigned type) {
    return (type >= 0xc7 && type <= 0xc9) || (type >= 0xd4 && type <= 0xd8);
  }

  std::string_view take(std::uint64_t size) {
    if (size > left_.size()) throw bad("the message is cut short");
    const std::string_view taken = left_.substr(0, static_cast<std::size_t>(size));
    left_.remove_prefix(taken.size());
    return taken;
  }

  unsigned byte() { return static_cast<unsigned char>(take(1)[0]); }

  std::uint64_t big(unsigned size) {
    std::uint64_t value = 0;
    for (const char c : take(size)) value = value << 8 | static_cast<unsigned char>(c);
    return value;
  }

  std::uint64_t little() {
    const std::string_view bytes = take(4);
    std::uint64_t value = 0;
    for (int at = 3; at >= 0; --at) {
      value = value << 8 | static_cast<unsigned char>(bytes[static_cast<std::size_t>(at)]);
    }
    return value;
  }

  std::uint64_t map_size() {
    const unsigned type = byte();
    if ((type & 0xf0U) == 0x80) return type & 0x0fU;
    if (type == 0xde || type == 0xdf) return big(type == 0xde ? 2 : 4);
    throw bad("expected a map, got type " + std::to_string(type));
  }

  std::string_view text() {
    const unsigned type = byte();
    if ((type & 0xe0U) == 0xa0) return take(type & 0x1fU);
    if (type >= 0xd9 && type <= 0xdb) return take(big(1U << (type - 0xd9)));
    throw bad("expected a name, got type " + std::to_string(type));
  }

  std::string_view extension(unsigned type) {
    const std::uint64_t size = type <= 0xc9 ? big(1U << (type - 0xc7)) : 1U << (type - 0xd4);
    if (byte() != 1) throw bad("an extension that is no array");
    return take(size);
  }

  void skip(int depth) {
    if (depth == 0) throw bad("nested too deeply");
    const unsigned type = byte();
    if (type < 0x80 || type >= 0xe0 || (type >= 0xc0 && type <= 0xc3)) return;
    if (type < 0x90) return skip_many(2 * (type & 0x0fU), depth);
    if (type < 0xa0) return skip_many(type & 0x0fU, depth);
    if (type < 0xc0) return void(take(type & 0x1fU));
    if (is_extension(type)) return void(extension(type));
    if (type >= 0xc4 && type <= 0xc6) return void(take(big(1U << (type - 0xc4))));
    if (type == 0xca || type == 0xcb) return void(take(type == 0xca ? 4 : 8));
    if (type >= 0xcc && type <= 0xd3) return void(take(1U << ((type - 0xcc) & 3U)));
    if (type >= 0xd9 && type <= 0xdb) return void(take(big(1U << (type - 0xd9))));
    const std::uint64_t count = big(type % 2 == 0 ? 2 : 4);  // dc, dd: lists; de, df: maps
    skip_many(type >= 0xde ? 2 * count : count, depth);
  }

  void skip_many(std::uint64_t count, int depth) {
    for (; count > 0; --count) skip(depth - 1);  // each takes a byte, so the end comes soon
  }

  std::string_view left_;
};

}  // namespace detail
}  // namespace bray
