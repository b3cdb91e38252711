// Messages as bytes. Writes one in hexadecimal, then reads lines `TYPE HEX` from standard input, of
// maps whose "action" is of that type (integer, float, int64), and writes what it has, or the code
// of the error.
#include "bray/message.hpp"

#include <iostream>
#include <sstream>
#include <string>
#include <vector>

namespace {

std::string from_hex(const std::string& hex) {
  std::string bytes;
  for (std::size_t i = 0; i + 1 < hex.size(); i += 2) {
    bytes.push_back(static_cast<char>(std::stoi(hex.substr(i, 2), nullptr, 16)));
  }
  return bytes;
}

std::string written() {
  const std::vector<std::int64_t> cards = {-1, 1LL << 40};
  const std::uint8_t pixels[] = {0, 1, 2, 3, 4, 255};
  return bray::Message()
      .map("observation", bray::Message()
                              .array("own", {0.5f, -1.0f})
                              .array("cards", cards)
                              .array("none", std::vector<double>())
                              .array("image", pixels, {1, 2, 3}))
      .number("reward", -0.25)
      .flag("terminated", true)
      .encode();
}

template <typename T>
std::string joined(const std::vector<T>& values) {
  std::ostringstream text;
  for (const T value : values) text << value << ' ';
  return text.str();
}

std::string read(const std::string& type, const std::string& body) {
  if (type == "integer") return std::to_string(bray::read_integer(body, "action"));
  if (type == "float") return joined(bray::read_array<float>(body, "action"));
  return joined(bray::read_array<std::int64_t>(body, "action"));
}

}  // namespace

int main() {
  for (const char byte : written()) {
    const char* digits = "0123456789abcdef";
    std::cout << digits[static_cast<unsigned char>(byte) >> 4] << digits[byte & 15];
  }
  std::cout << std::endl;
  for (std::string line; std::getline(std::cin, line);) {
    std::string type, hex;
    std::istringstream(line) >> type >> hex;
    try {
      std::cout << read(type, from_hex(hex)) << std::endl;
    } catch (const bray::Error& error) {
      std::cout << error.code() << std::endl;
    }
  }
}
