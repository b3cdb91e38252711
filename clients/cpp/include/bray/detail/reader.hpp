// Bytes of bray's codec (docs/codec.md) as values; nothing in the bytes is trusted.
#pragma once

#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>
#include <utility>

#include "bray/detail/dtypes.hpp"
#include "bray/errors.hpp"
#include "bray/frames.hpp"
#include "bray/value.hpp"

namespace bray::detail {

/// Reads one value after the other; whatever is not whole is an Error, "bad_message".
///
/// A byte of a message can be a value of a hundred bytes in memory, so their number is bounded, by
/// the lengths that lists and maps claim and before anything is allocated for them.
class Reader {
 public:
  static constexpr std::uint64_t kMaxValues = 65'536;

  explicit Reader(std::string_view bytes) : left_(bytes) {}

  bool is_at_end() const { return left_.empty(); }

  /// Return the next value, which may have so many levels of lists and maps.
  Value value(int levels) {
    const unsigned type = byte();
    if (type < 0x80) return type;
    if (type < 0x90) return map(type & 0x0fU, levels);
    if (type < 0xa0) return list(type & 0x0fU, levels);
    if (type < 0xc0) return text(type & 0x1fU);
    if (type >= 0xe0) return static_cast<std::int64_t>(type) - 0x100;
    switch (type) {
      case 0xc0: return nullptr;
      case 0xc2: return false;
      case 0xc3: return true;
      case 0xc4: case 0xc5: case 0xc6: return Binary{std::string(take(big(1U << (type - 0xc4))))};
      case 0xc7: case 0xc8: case 0xc9: return array(big(1U << (type - 0xc7)));
      case 0xca: return real<float, std::uint32_t>();
      case 0xcb: return real<double, std::uint64_t>();
      case 0xcc: case 0xcd: case 0xce: case 0xcf: return big(1U << (type - 0xcc));
      case 0xd0: case 0xd1: case 0xd2: case 0xd3: return negative(1U << (type - 0xd0));
      case 0xd4: case 0xd5: case 0xd6: case 0xd7: case 0xd8: return array(1U << (type - 0xd4));
      case 0xd9: case 0xda: case 0xdb: return text(big(1U << (type - 0xd9)));
      case 0xdc: case 0xdd: return list(big(type == 0xdc ? 2 : 4), levels);
      case 0xde: case 0xdf: return map(big(type == 0xde ? 2 : 4), levels);
      default: throw bad("no value begins with the byte " + std::to_string(type));
    }
  }

 private:
  static Error bad(const std::string& message) { return Error("bad_message", message); }

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

  /// A signed integer of so many bytes.
  std::int64_t negative(unsigned size) {
    const unsigned shift = 64 - 8 * size;
    return static_cast<std::int64_t>(big(size) << shift) >> shift;
  }

  template <typename T, typename Bits>
  T real() {
    const auto bits = static_cast<Bits>(big(sizeof(Bits)));
    T value = 0;
    std::memcpy(&value, &bits, sizeof value);
    return value;
  }

  std::string text(std::uint64_t size) {
    const std::string_view text = take(size);
    if (!is_utf8(text)) throw bad("a text that is not UTF-8");
    return std::string(text);
  }

  std::string name() {
    const unsigned type = byte();
    if ((type & 0xe0U) == 0xa0) return text(type & 0x1fU);
    if (type >= 0xd9 && type <= 0xdb) return text(big(1U << (type - 0xd9)));
    throw bad("expected a text as the name of a value, got type " + std::to_string(type));
  }

  Array array(std::uint64_t size) {
    if (byte() != 1) throw bad("an extension that is no array");
    Reader payload(take(size));
    Array array;
    array.dtype = payload.take(payload.byte());
    const unsigned dimensions = payload.byte();
    const std::string_view lengths = payload.take(std::uint64_t{4} * dimensions);
    array.shape.reserve(dimensions);
    for (unsigned at = 0; at < dimensions; ++at) {
      array.shape.push_back(read_little(lengths.data() + std::size_t{4} * at, 4));
    }
    array.elements = payload.left_;
    array.check();
    return array;
  }

  Value::List list(std::uint64_t length, int levels) {
    enter(length, levels);
    Value::List values;
    values.reserve(static_cast<std::size_t>(length));
    for (; length > 0; --length) values.push_back(value(levels - 1));
    return values;
  }

  Value::Map map(std::uint64_t length, int levels) {
    enter(2 * length, levels);
    Value::Map values;
    values.reserve(static_cast<std::size_t>(length));
    for (; length > 0; --length) {
      std::string key = name();
      values.emplace_back(std::move(key), value(levels - 1));
    }
    return values;
  }

  /// Count what a list or map claims to hold: a byte each at least.
  void enter(std::uint64_t count, int levels) {
    if (levels == 0) throw bad("nested deeper than 32");
    if (count > left_.size()) throw bad("the message is cut short");
    if (count > num_values_left_) throw bad("more than 65536 values: send many numbers as one array");
    num_values_left_ -= count;
  }

  std::string_view left_;
  std::uint64_t num_values_left_ = kMaxValues - 1;  // the outermost is one
};

}  // namespace bray::detail
