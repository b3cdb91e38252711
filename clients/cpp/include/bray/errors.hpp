// What can go wrong, in one tree.
//
//     std::runtime_error
//     └── bray::Error              code() and message()
//         ├── ServiceError         the server answered with an error
//         ├── TimeoutError         no reply in time (code "timeout")
//         └── ConnectionError      "unreachable" or "connection_lost"
//             └── FrameError       the server sent bytes that are no frame of this protocol
#pragma once

#include <stdexcept>
#include <string>
#include <utility>

namespace bray {

/// The root of all errors that this client throws on purpose.
class Error : public std::runtime_error {
 public:
  Error(std::string code, std::string message)
      : std::runtime_error(code + ": " + message),
        code_(std::move(code)),
        message_(std::move(message)) {}

  /// A short name to decide by; docs/protocol.md lists them.
  const std::string& code() const noexcept { return code_; }
  /// Text for people.
  const std::string& message() const noexcept { return message_; }

 private:
  std::string code_;
  std::string message_;
};

/// The server answered this request with an error; `code()` and `message()` as it said. Also for
/// what the server would refuse and is therefore not sent: `bad_session`, `busy`.
class ServiceError : public Error {
 public:
  using Error::Error;
};

/// No reply in time: the request may have been executed or not.
class TimeoutError : public Error {
 public:
  using Error::Error;
};

/// There is no connection. `unreachable`: the request was not sent, not one byte of it.
/// `connection_lost` and all other codes: it may have been executed or not.
class ConnectionError : public Error {
 public:
  using Error::Error;
};

/// Bytes that are no frame (`bad_frame`, `bad_session`), or a reply beyond
/// `Options::max_reply_bytes` (`body_too_large`). The stream cannot be read any further.
class FrameError : public ConnectionError {
 public:
  using ConnectionError::ConnectionError;
};

}  // namespace bray
