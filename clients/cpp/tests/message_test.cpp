// Messages as bytes. Writes one in hexadecimal, then reads lines `TYPE HEX` from standard input and
// writes an answer to each, or the code of the error:
//
//     integer, float, int64    the "action" of a map, of that type
//     again                    the value, decoded and encoded again, in hexadecimal
//     shown                    the value, as its accessors tell it
#include "bray/message.hpp"

#include <complex>
#include <iostream>
#include <sstream>
#include <string>
#include <vector>

#include "check.hpp"

namespace {

using bray::Array;
using bray::Value;

std::string from_hex(const std::string& hex) {
  std::string bytes;
  for (std::size_t i = 0; i + 1 < hex.size(); i += 2) {
    bytes.push_back(static_cast<char>(std::stoi(hex.substr(i, 2), nullptr, 16)));
  }
  return bytes;
}

std::string to_hex(const std::string& bytes) {
  const char* digits = "0123456789abcdef";
  std::string hex;
  for (const char byte : bytes) {
    hex.push_back(digits[static_cast<unsigned char>(byte) >> 4]);
    hex.push_back(digits[byte & 15]);
  }
  return hex;
}

std::string written() {
  const std::vector<std::int64_t> cards = {-1, 1LL << 40};
  const std::uint8_t pixels[] = {0, 1, 2, 3, 4, 255};
  const bool grid[] = {true, false, false, true};
  const std::vector<std::complex<float>> waves = {{0.5f, -1.0f}};
  return bray::Message()
      .map("observation", bray::Message()
                              .array("own", {0.5f, -1.0f})
                              .array("cards", cards)
                              .array("none", std::vector<double>())
                              .array("image", pixels, {1, 2, 3})
                              .array("seen", std::vector<bool>{true, false, true})
                              .array("grid", grid, {2, 2})
                              .array("half", std::vector<bray::Half>{{0x3800}})
                              .array("waves", waves)
                              .integer("item", -7))
      .number("reward", -0.25)
      .flag("terminated", true)
      .value("list", Value::List{nullptr, true, -1, 18446744073709551615U, 1.5f, "text",
                                 bray::Binary{std::string("\0\xff", 2)}, Array::of(cards)})
      .value("spaces", Value::Map{{"camera", Value::Map{{"shape", Value::List{8, 8}}}},
                                  {"item", Value::Map{{"discrete", 4}}}})
      .encode();
}

template <typename T>
std::string joined(const std::vector<T>& values) {
  std::ostringstream text;
  for (const T value : values) text << value << ' ';
  return text.str();
}

std::string shown(const Value& value) {
  std::ostringstream text;
  text.precision(17);
  switch (value.type()) {
    case Value::Type::nil: return "nil";
    case Value::Type::flag: return value.flag() ? "true" : "false";
    case Value::Type::integer: return std::to_string(value.integer());
    case Value::Type::natural: return std::to_string(value.natural());
    case Value::Type::number: text << "number " << value.number(); break;
    case Value::Type::text: text << "text:" << to_hex(value.text()); break;
    case Value::Type::binary: text << "bytes:" << to_hex(value.binary()); break;
    case Value::Type::array:
      text << "array " << value.array().dtype << " (" << joined(value.array().shape) << "):"
           << to_hex(value.array().elements);
      break;
    case Value::Type::list:
      text << '[';
      for (const Value& child : value.list()) text << shown(child) << ", ";
      text << ']';
      break;
    case Value::Type::map:
      text << '{';
      for (const auto& [name, child] : value.map()) {
        text << to_hex(name) << ": " << shown(value.at(name)) << ", ";
        CHECK_EQUAL(shown(child), shown(value.at(name)));
      }
      text << '}';
  }
  return text.str();
}

std::string read(const std::string& type, const std::string& body) {
  if (type == "again") return to_hex(bray::encode(bray::decode(body)));
  if (type == "shown") return shown(bray::decode(body));
  if (type == "integer") return std::to_string(bray::read_integer(body, "action"));
  if (type == "float") return joined(bray::read_array<float>(body, "action"));
  return joined(bray::read_array<std::int64_t>(body, "action"));
}

Value nested_lists(int levels) {
  Value value = 1;
  for (; levels > 0; --levels) {
    Value::List outer;
    outer.push_back(std::move(value));
    value = std::move(outer);
  }
  return value;
}

#define CHECK_REFUSED(expression) CHECK_THROWS(expression, bray::Error, "bad_message")

void check_what_is_not_written() {
  CHECK_REFUSED(bray::encode(nested_lists(33)));
  CHECK_EQUAL(bray::encode(nested_lists(32)).size(), 33U);
  CHECK_REFUSED(bray::encode("\xff"));
  CHECK_REFUSED(bray::encode(Value::Map{{"\xff", 1}}));
  CHECK_REFUSED(bray::encode(Array{"<f4", {2}, "1234"}));
  CHECK_REFUSED(bray::encode(Array{"<f9", {1}, "1234"}));
  CHECK_REFUSED(bray::encode(Array{"|b1", {1}, "\2"}));
  const float numbers[1] = {};
  CHECK_REFUSED(Array::of(numbers, std::vector<std::uint32_t>(33, 1)));
  CHECK_REFUSED(Array::of(numbers, std::vector<std::uint32_t>(3, 0xffffffffU)));

  bray::Message message;
  message.text("a", "b");
  const std::string before = message.encode();
  CHECK_REFUSED(message.text("c", "\xff"));
  CHECK_REFUSED(message.value("c", nested_lists(32)));  // the map around it is one more
  CHECK_EQUAL(message.encode(), before);
}

void check_what_is_read_as_another_kind() {
  const std::uint8_t byte[] = {3};
  const double real[] = {0.5};
  const bool yes[] = {true};
  CHECK_EQUAL(Value(Array::of(byte, {})).integer(), 3);
  CHECK_EQUAL(Value(Array::of(byte, {})).natural(), 3U);
  CHECK_EQUAL(Value(Array::of(real, {})).number(), 0.5);
  CHECK(Value(Array::of(yes, {})).flag());
  CHECK_EQUAL(Value(3).number(), 3.0);
  CHECK_EQUAL(Value(18446744073709551615U).number(), 18446744073709551616.0);
  CHECK(Value::Map({{"a", 1}}).size() == 1 && Value(Value::Map{{"a", 1}}).find("b") == nullptr);

  CHECK_REFUSED(Value(Array::of(byte, {1})).integer());
  CHECK_REFUSED(Value(Array::of(real, {})).integer());
  CHECK_REFUSED(Value(Array{"|i1", {}, ""}).integer());
  CHECK_REFUSED(Value(3.0).integer());
  CHECK_REFUSED(Value(18446744073709551615U).integer());
  CHECK_REFUSED(Value(-1).natural());
  CHECK_REFUSED(Value(true).number());
  CHECK_REFUSED(Value(1).flag());
  CHECK_REFUSED(Value(1).text());
  CHECK_REFUSED(Value("a").binary());
  CHECK_REFUSED(Value().at("a"));
  CHECK_REFUSED(Value(Value::Map{}).at("a"));
  CHECK_REFUSED(Array::of(real, {1}).as<float>());
}

void check_the_bounds_of_a_message() {
  const std::string body = bray::encode("text");
  CHECK_EQUAL(bray::decode(body, body.size()).text(), "text");
  CHECK_REFUSED(bray::decode(body, body.size() - 1));
  const std::string most = bray::encode(Value::List(65'535));
  CHECK_EQUAL(bray::decode(most).list().size(), 65'535U);
  CHECK_REFUSED(bray::decode(bray::encode(Value::List(65'536))));
  CHECK_REFUSED(bray::decode(bray::encode(Value::List(3, Value::List(22'000)))));
}

}  // namespace

int main() {
  check_what_is_not_written();
  check_what_is_read_as_another_kind();
  check_the_bounds_of_a_message();
  std::cout << to_hex(written()) << std::endl;
  for (std::string line; std::getline(std::cin, line);) {
    std::string type, hex;
    std::istringstream(line) >> type >> hex;
    try {
      std::cout << read(type, from_hex(hex)) << '\n';
    } catch (const bray::Error& error) {
      std::cout << error.code() << '\n';
    }
  }
}
