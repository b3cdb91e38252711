// A value of a message, of any kind: what bray's codec (docs/codec.md) can say.
//
//     bray::Value::Map spaces{{"discrete", 4}, {"names", bray::Value::List{"left", "right"}}};
//     bray::Value reply = bray::decode(client.start("game-1", body));
//     double difficulty = reply.at("settings").at("difficulty").number();
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

#include "bray/array.hpp"
#include "bray/errors.hpp"

namespace bray {

/// Bytes that are no text.
struct Binary {
  std::string bytes;
};

/// Nothing, true or false, a number, text, bytes, an array, or a list or map of values.
///
/// What reads it throws Error, "bad_message", where it holds another kind. `flag`, `integer`,
/// `natural` and `number` read an array without dimensions too: so numpy's scalars come.
class Value {
 public:
  using List = std::vector<Value>;
  using Map = std::vector<std::pair<std::string, Value>>;  // in the order of the message

  /// The kinds; `natural` is an integer beyond std::int64_t.
  enum class Type { nil, flag, integer, natural, number, text, binary, array, list, map };

  Value() = default;
  Value(std::nullptr_t) {}
  template <typename T, typename = std::enable_if_t<std::is_arithmetic<T>::value>>
  Value(T value) {
    if constexpr (std::is_same<T, bool>::value) {
      held_ = value;
    } else if constexpr (std::is_floating_point<T>::value) {
      held_ = static_cast<double>(value);
    } else if constexpr (std::is_signed<T>::value) {
      held_ = static_cast<std::int64_t>(value);
    } else {
      set_natural(value);
    }
  }
  Value(const char* text) : held_(std::string(text)) {}
  Value(std::string text) : held_(std::move(text)) {}
  Value(Binary bytes) : held_(std::move(bytes)) {}
  Value(Array array) : held_(std::move(array)) {}
  Value(List values) : held_(std::move(values)) {}
  Value(Map values) : held_(std::move(values)) {}

  Type type() const noexcept { return static_cast<Type>(held_.index()); }
  bool is_nil() const noexcept { return type() == Type::nil; }

  bool flag() const {
    const Value plain = scalar();
    if (const bool* const held = std::get_if<bool>(&plain.held_)) return *held;
    throw unexpected("true or false");
  }

  std::int64_t integer() const {
    const Value plain = scalar();
    if (const auto* const held = std::get_if<std::int64_t>(&plain.held_)) return *held;
    throw unexpected("an integer of 64 bits");
  }

  /// An integer from 0 to 2^64 - 1.
  std::uint64_t natural() const {
    const Value plain = scalar();
    if (const auto* const held = std::get_if<std::uint64_t>(&plain.held_)) return *held;
    const auto* const held = std::get_if<std::int64_t>(&plain.held_);
    if (held != nullptr && *held >= 0) return static_cast<std::uint64_t>(*held);
    throw unexpected("an integer of 0 or more");
  }

  /// Any number; an integer beyond 2^53 is rounded.
  double number() const {
    const Value plain = scalar();
    if (const auto* const held = std::get_if<double>(&plain.held_)) return *held;
    if (const auto* const held = std::get_if<std::uint64_t>(&plain.held_)) {
      return static_cast<double>(*held);
    }
    if (const auto* const held = std::get_if<std::int64_t>(&plain.held_)) {
      return static_cast<double>(*held);
    }
    throw unexpected("a number");
  }

  const std::string& text() const { return get<std::string>("text"); }
  const std::string& binary() const { return get<Binary>("bytes").bytes; }
  const Array& array() const { return get<Array>("an array"); }
  const List& list() const { return get<List>("a list"); }
  const Map& map() const { return get<Map>("a map"); }

  /// The value of a name of a map; null where it has none.
  const Value* find(std::string_view name) const {
    const Map& values = map();
    for (auto at = values.rbegin(); at != values.rend(); ++at) {  // of a name twice the last counts
      if (at->first == name) return &at->second;
    }
    return nullptr;
  }

  /// The value of a name of a map. Throws Error, "bad_message", also where it has none.
  const Value& at(std::string_view name) const {
    if (const Value* const found = find(name)) return *found;
    throw Error("bad_message", "no " + std::string(name) + " in the message");
  }

 private:
  void set_natural(std::uint64_t value) {
    if (value <= static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max())) {
      held_ = static_cast<std::int64_t>(value);
    } else {
      held_ = value;
    }
  }

  /// This value if it is a scalar, the one of an array without dimensions; else nil.
  Value scalar() const {
    if (type() >= Type::flag && type() <= Type::number) return *this;
    const Array* const array = std::get_if<Array>(&held_);
    if (array == nullptr || !array->shape.empty()) return Value();
    return scalar_of<bool, std::int8_t, std::int16_t, std::int32_t, std::int64_t, std::uint8_t,
                     std::uint16_t, std::uint32_t, std::uint64_t, float, double>(*array);
  }

  template <typename... T>
  static Value scalar_of(const Array& array) {
    Value value;
    const auto take = [&](auto element) {
      using Element = decltype(element);
      if (array.dtype != detail::dtype_of<Element>()) return;
      value = Value(static_cast<Element>(array.as<Element>()[0]));
    };
    (take(T{}), ...);
    return value;
  }

  template <typename T>
  const T& get(const char* wanted) const {
    if (const T* const held = std::get_if<T>(&held_)) return *held;
    throw unexpected(wanted);
  }

  Error unexpected(const char* wanted) const {
    constexpr const char* kNames[] = {"nil",      "true or false", "an integer", "an integer",
                                      "a number", "text",          "bytes",      "an array",
                                      "a list",   "a map"};
    const char* const got = kNames[held_.index()];
    return Error("bad_message", std::string("expected ") + wanted + ", got " + got);
  }

  std::variant<std::monostate, bool, std::int64_t, std::uint64_t, double, std::string, Binary,
               Array, List, Map>
      held_;  // in the order of Type
};

}  // namespace bray
