// Just enough JSON to read the body of an error frame, whatever it holds.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace bray::detail {

/// Code and message of an error frame.
struct ErrorBody {
  std::string code;
  std::string message;
};

/// Reads one JSON object and keeps its two strings "code" and "message".
class ErrorBodyReader {
 public:
  explicit ErrorBodyReader(std::string_view text) : rest_(text) {}

  /// The two strings; nothing if the text is no JSON object that has them.
  std::optional<ErrorBody> read() {
    if (!read_members(0, true)) return std::nullopt;
    skip_space();
    if (!rest_.empty() || !code_ || !message_) return std::nullopt;
    return ErrorBody{*code_, *message_};
  }

 private:
  static constexpr int kMaxDepth = 32;

  void skip_space() {
    const std::size_t at = rest_.find_first_not_of(" \t\r\n");
    rest_.remove_prefix(at == std::string_view::npos ? rest_.size() : at);
  }

  bool take(char wanted) {
    skip_space();
    if (rest_.empty() || rest_.front() != wanted) return false;
    rest_.remove_prefix(1);
    return true;
  }

  bool read_members(int depth, bool is_top) {
    if (!take('{')) return false;
    if (take('}')) return true;
    do {
      std::string key;
      if (!read_string(key) || !take(':') || !read_member(key, depth, is_top)) return false;
    } while (take(','));
    return take('}');
  }

  bool read_member(const std::string& key, int depth, bool is_top) {
    std::optional<std::string>* const kept =
        !is_top ? nullptr : key == "code" ? &code_ : key == "message" ? &message_ : nullptr;
    if (kept == nullptr) return skip_value(depth + 1);
    std::string value;
    if (!read_string(value)) return false;
    *kept = value;
    return true;
  }

  bool skip_value(int depth) {
    skip_space();
    if (depth > kMaxDepth || rest_.empty()) return false;
    std::string ignored;
    switch (rest_.front()) {
      case '"': return read_string(ignored);
      case '{': return read_members(depth, false);
      case '[': return skip_array(depth);
      default: return skip_word();
    }
  }

  bool skip_array(int depth) {
    if (!take('[')) return false;
    if (take(']')) return true;
    do {
      if (!skip_value(depth + 1)) return false;
    } while (take(','));
    return take(']');
  }

  /// A number, true, false or null.
  bool skip_word() {
    const std::size_t at = rest_.find_first_not_of("+-.0123456789abcdefghijklmnopqrstuvwxyzEIN");
    const std::size_t length = at == std::string_view::npos ? rest_.size() : at;
    rest_.remove_prefix(length);
    return length > 0;
  }

  bool read_string(std::string& out) {
    if (!take('"')) return false;
    while (!rest_.empty()) {
      const char c = rest_.front();
      rest_.remove_prefix(1);
      if (c == '"') return true;
      if (static_cast<unsigned char>(c) < 0x20) return false;
      if (c != '\\') {
        out.push_back(c);
      } else if (!read_escape(out)) {
        return false;
      }
    }
    return false;
  }

  bool read_escape(std::string& out) {
    if (rest_.empty()) return false;
    const char c = rest_.front();
    rest_.remove_prefix(1);
    if (c == 'u') return read_code_point(out);
    constexpr std::string_view kNames = "\"\\/bfnrt";
    constexpr std::string_view kMeanings = "\"\\/\b\f\n\r\t";
    const std::size_t at = kNames.find(c);
    if (at == std::string_view::npos) return false;
    out.push_back(kMeanings[at]);
    return true;
  }

  /// After \u: four digits, and for a pair of surrogates \u and four more.
  bool read_code_point(std::string& out) {
    std::uint32_t point = 0;
    if (!read_hex(point)) return false;
    if (point >= 0xD800 && point < 0xDC00 && rest_.substr(0, 2) == "\\u") {
      const std::string_view before = rest_;
      std::uint32_t low = 0;
      rest_.remove_prefix(2);
      if (!read_hex(low)) return false;
      if (low >= 0xDC00 && low < 0xE000) {
        point = 0x10000 + ((point - 0xD800) << 10) + (low - 0xDC00);
      } else {
        rest_ = before;  // no pair: what follows is a character of its own
      }
    }
    append_utf8(out, point >= 0xD800 && point < 0xE000 ? 0xFFFD : point);
    return true;
  }

  bool read_hex(std::uint32_t& value) {
    if (rest_.size() < 4) return false;
    value = 0;
    for (const char c : rest_.substr(0, 4)) {
      const bool is_digit = c >= '0' && c <= '9';
      const char lower = static_cast<char>(c | 0x20);
      if (!is_digit && (lower < 'a' || lower > 'f')) return false;
      value = value * 16 + static_cast<std::uint32_t>(is_digit ? c - '0' : lower - 'a' + 10);
    }
    rest_.remove_prefix(4);
    return true;
  }

  static void append_utf8(std::string& out, std::uint32_t point) {
    const auto put = [&out](std::uint32_t byte) { out.push_back(static_cast<char>(byte)); };
    if (point < 0x80) return put(point);
    if (point < 0x800) {
      put(0xC0 | (point >> 6));
    } else if (point < 0x10000) {
      put(0xE0 | (point >> 12));
      put(0x80 | ((point >> 6) & 0x3F));
    } else {
      put(0xF0 | (point >> 18));
      put(0x80 | ((point >> 12) & 0x3F));
      put(0x80 | ((point >> 6) & 0x3F));
    }
    put(0x80 | (point & 0x3F));
  }

  std::string_view rest_;
  std::optional<std::string> code_;
  std::optional<std::string> message_;
};

/// Code and message of an error frame's body; `bad_frame` if it has none.
inline ErrorBody read_error_body(std::string_view body) {
  if (std::optional<ErrorBody> found = ErrorBodyReader(body).read()) return *found;
  return {"bad_frame",
          "an error frame without code and message: " + std::string(body.substr(0, 100))};
}

}  // namespace bray::detail
