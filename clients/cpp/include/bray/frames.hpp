// The binary protocol, version 1: frames as bytes, and an incremental parser. docs/protocol.md is
// its text. Needed only by those who write a client or server of their own.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "bray/errors.hpp"

namespace bray {

/// What a frame says.
enum class Kind : std::uint8_t {
  start = 1,
  tick = 2,
  end = 3,
  call = 4,
  reply = 5,
  error = 6,
  hello = 7,
  ping = 8,
  pong = 9,
};

constexpr std::size_t kHeaderBytes = 16;
constexpr std::size_t kMaxSessionBytes = 0xFFFF;
constexpr std::size_t kMaxBodyBytes = 0xFFFFFFFF;

/// One frame, as views into the parser's buffer.
struct Frame {
  Kind kind{};
  std::uint32_t request_id = 0;
  std::string_view session;
  std::string_view body;
};

namespace detail {

inline void append_little(std::string& out, std::uint32_t value, int num_bytes) {
  for (int i = 0; i < num_bytes; ++i) out.push_back(static_cast<char>((value >> (8 * i)) & 0xFFU));
}

inline std::uint32_t read_little(const char* data, int num_bytes) {
  std::uint32_t value = 0;
  for (int i = 0; i < num_bytes; ++i) {
    value |= static_cast<std::uint32_t>(static_cast<unsigned char>(data[i])) << (8 * i);
  }
  return value;
}

/// The length of the UTF-8 sequence at the start of `text`, 0 if it is none.
inline std::size_t utf8_length(std::string_view text) {
  const auto byte = [&](std::size_t i) { return static_cast<unsigned char>(text[i]); };
  const unsigned char first = byte(0);
  if (first < 0x80) return 1;
  const std::size_t length = first < 0xC2 ? 0 : first < 0xE0 ? 2 : first < 0xF0 ? 3 : 4;
  if (length == 0 || first > 0xF4 || text.size() < length) return 0;
  for (std::size_t i = 1; i < length; ++i) {
    if ((byte(i) & 0xC0) != 0x80) return 0;
  }
  const bool is_overlong = (first == 0xE0 && byte(1) < 0xA0) || (first == 0xF0 && byte(1) < 0x90);
  const bool is_surrogate = first == 0xED && byte(1) > 0x9F;
  const bool is_too_large = first == 0xF4 && byte(1) > 0x8F;
  return is_overlong || is_surrogate || is_too_large ? 0 : length;
}

}  // namespace detail

/// Whether `text` is well-formed UTF-8, which a session id must be.
inline bool is_utf8(std::string_view text) {
  while (!text.empty()) {
    const std::size_t length = detail::utf8_length(text);
    if (length == 0) return false;
    text.remove_prefix(length);
  }
  return true;
}

/// Return a frame as bytes.
///
/// Throws FrameError if a length does not fit its field.
inline std::string pack_frame(Kind kind, std::uint32_t request_id, std::string_view session,
                              std::string_view body) {
  if (session.size() > kMaxSessionBytes) {
    throw FrameError("bad_session", "a session id of " + std::to_string(session.size()) +
                                        " bytes exceeds the protocol's 65535");
  }
  if (body.size() > kMaxBodyBytes) {
    throw FrameError("body_too_large", "a body of " + std::to_string(body.size()) +
                                           " bytes exceeds the protocol's 4 GiB");
  }
  std::string out;
  out.reserve(kHeaderBytes + session.size() + body.size());
  out.append("BRY\x01", 4);
  out.push_back(static_cast<char>(kind));
  out.push_back(0);  // flags
  detail::append_little(out, static_cast<std::uint32_t>(session.size()), 2);
  detail::append_little(out, request_id, 4);
  detail::append_little(out, static_cast<std::uint32_t>(body.size()), 4);
  out.append(session);
  out.append(body);
  return out;
}

/// Cuts a stream of bytes into frames, however it is split.
///
///     parser.feed(bytes);
///     for (Frame frame; parser.next(frame);) …  // frame's views hold until the next feed
class FrameParser {
 public:
  /// A longer body or session id is refused as soon as its header is there.
  explicit FrameParser(std::size_t max_body_bytes,
                       std::size_t max_session_bytes = kMaxSessionBytes)
      : max_body_bytes_(max_body_bytes), max_session_bytes_(max_session_bytes) {}

  /// Take bytes.
  void feed(std::string_view data) {
    buffer_.erase(0, at_);
    at_ = 0;
    if (buffer_.empty() && buffer_.capacity() > kMaxSpareBytes) std::string().swap(buffer_);
    buffer_.append(data);
  }

  /// Set the next whole frame, if there is one.
  ///
  /// Throws FrameError: the stream is not this protocol, and cannot be read any further.
  bool next(Frame& frame) {
    const std::string_view rest = std::string_view(buffer_).substr(at_);
    if (rest.size() < kHeaderBytes) return false;
    const std::size_t session_bytes = detail::read_little(rest.data() + 6, 2);
    const std::size_t body_bytes = detail::read_little(rest.data() + 12, 4);
    check(rest, session_bytes, body_bytes);
    const std::size_t size = kHeaderBytes + session_bytes + body_bytes;
    if (rest.size() < size) return false;
    frame.kind = static_cast<Kind>(rest[4]);
    frame.request_id = detail::read_little(rest.data() + 8, 4);
    frame.session = rest.substr(kHeaderBytes, session_bytes);
    frame.body = rest.substr(kHeaderBytes + session_bytes, body_bytes);
    if (!is_utf8(frame.session)) throw FrameError("bad_session", "the session id is not UTF-8");
    at_ += size;
    return true;
  }

  /// Bytes of a frame that is not whole yet.
  std::size_t pending_bytes() const noexcept { return buffer_.size() - at_; }

 private:
  void check(std::string_view header, std::size_t session_bytes, std::size_t body_bytes) const {
    if (header.substr(0, 3) != "BRY") throw FrameError("bad_frame", "expected the magic BRY");
    const int version = static_cast<unsigned char>(header[3]);
    const int kind = static_cast<unsigned char>(header[4]);
    const int flags = static_cast<unsigned char>(header[5]);
    if (version != 1) throw unexpected("version 1", version);
    if (kind < 1 || kind > 9) throw unexpected("a kind of 1 to 9", kind);
    if (flags != 0) throw unexpected("flags 0", flags);
    if (body_bytes > max_body_bytes_) throw too_long("body_too_large", body_bytes, max_body_bytes_);
    if (session_bytes > max_session_bytes_) {
      throw too_long("bad_session", session_bytes, max_session_bytes_);
    }
  }

  static FrameError unexpected(const std::string& wanted, int got) {
    return FrameError("bad_frame", "expected " + wanted + ", got " + std::to_string(got));
  }

  static FrameError too_long(const std::string& code, std::size_t size, std::size_t limit) {
    const std::string what = code == "bad_session" ? "a session id of " : "a body of ";
    return FrameError(code, what + std::to_string(size) + " bytes exceeds the limit of " +
                                std::to_string(limit));
  }

  static constexpr std::size_t kMaxSpareBytes = std::size_t{1} << 20;

  std::size_t max_body_bytes_;
  std::size_t max_session_bytes_;
  std::string buffer_;
  std::size_t at_ = 0;  // where the next frame begins
};

}  // namespace bray
