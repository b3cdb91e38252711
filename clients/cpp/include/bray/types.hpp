// What goes into a client and what comes out of it.
#pragma once

#include <chrono>
#include <cstddef>
#include <string>
#include <utility>

#include "bray/errors.hpp"
#include "bray/frames.hpp"

namespace bray {

/// The settings of a client; the defaults fit a server on the same network.
struct Options {
  /// Bearer token, sent first on each connection; empty: none.
  std::string token;
  /// For one attempt to connect, until the server has answered the first frame (hello or ping).
  std::chrono::milliseconds connect_timeout{5'000};
  /// From the call to its reply, connecting included.
  std::chrono::milliseconds timeout{60'000};
  /// Attempts to connect before requests fail as `unreachable`.
  int connect_attempts = 4;
  /// Wait before the second attempt; doubled before each further one.
  std::chrono::milliseconds backoff{50};
  /// The longest such wait.
  std::chrono::milliseconds max_backoff{1'000};
  /// A longer reply ends the connection with `body_too_large`.
  std::size_t max_reply_bytes = std::size_t{64} << 20;
  /// AsyncClient: requests without a reply; one more is answered `busy` at once. A server reads no
  /// more of a connection than 1,024 or 4,096, so that more are of no use.
  std::size_t max_in_flight = 1'024;
};

/// One request of an `exchange`: start, tick, end or call.
struct Request {
  Kind kind = Kind::tick;
  std::string session;
  std::string body;
};

/// How a request ended.
enum class Outcome {
  ok,                // body() is the answer
  service_error,     // the server refused: throws ServiceError
  timeout,           // no reply in time: throws TimeoutError
  connection_error,  // no connection: throws ConnectionError
};

/// What came back: a body, or an error.
class Reply {
 public:
  /// An answer.
  static Reply answer(std::string body) {
    Reply reply;
    reply.body_ = std::move(body);
    return reply;
  }

  /// An error.
  static Reply failure(Outcome outcome, std::string code, std::string message) {
    Reply reply;
    reply.outcome_ = outcome;
    reply.code_ = std::move(code);
    reply.message_ = std::move(message);
    return reply;
  }

  bool ok() const noexcept { return outcome_ == Outcome::ok; }
  Outcome outcome() const noexcept { return outcome_; }

  /// The answer. Throws ServiceError, TimeoutError or ConnectionError if there is none.
  const std::string& body() const& {
    throw_if_failed();
    return body_;
  }
  std::string body() && {
    throw_if_failed();
    return std::move(body_);
  }

  /// The error's code; empty if there is none.
  const std::string& code() const noexcept { return code_; }
  /// The error's text; empty if there is none.
  const std::string& message() const noexcept { return message_; }

  /// Throw the error, if there is one.
  void throw_if_failed() const {
    switch (outcome_) {
      case Outcome::ok: return;
      case Outcome::service_error: throw ServiceError(code_, message_);
      case Outcome::timeout: throw TimeoutError(code_, message_);
      case Outcome::connection_error: throw ConnectionError(code_, message_);
    }
  }

 private:
  Outcome outcome_ = Outcome::ok;
  std::string body_;
  std::string code_;
  std::string message_;
};

}  // namespace bray
