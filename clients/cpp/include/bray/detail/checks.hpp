// What is refused before it is sent.
#pragma once

#include <algorithm>
#include <chrono>
#include <stdexcept>
#include <string>

#include "bray/frames.hpp"
#include "bray/types.hpp"

namespace bray::detail {

/// A reply that throws ConnectionError.
inline Reply connection_error(const std::string& code, const std::string& message) {
  return Reply::failure(Outcome::connection_error, code, message);
}

/// Why a request cannot be sent; ok if it can.
inline Reply check_request(const Request& request) {
  const auto refuse = [](const char* code, const char* message) {
    return Reply::failure(Outcome::service_error, code, message);
  };
  if (request.kind < Kind::start || request.kind > Kind::call) {
    return refuse("bad_request", "kind: expected start, tick, end or call");
  }
  if (request.session.size() > kMaxSessionBytes) {
    return refuse("bad_session", "a session id has at most 65535 bytes");
  }
  if (!is_utf8(request.session)) return refuse("bad_session", "the session id is not UTF-8");
  if (request.body.size() > kMaxBodyBytes) {
    return refuse("body_too_large", "a body has at most 4 GiB");
  }
  return Reply::answer("");
}

/// Options within their bounds. Throws std::invalid_argument.
inline Options checked(Options options) {
  const auto require = [](bool is_so, const char* wanted) {
    if (!is_so) throw std::invalid_argument(std::string("bray::Options: expected ") + wanted);
  };
  using std::chrono::milliseconds;
  require(options.timeout > milliseconds(0), "timeout > 0");
  require(options.connect_timeout > milliseconds(0), "connect_timeout > 0");
  require(options.connect_attempts > 0, "connect_attempts > 0");
  require(options.backoff >= milliseconds(0), "backoff >= 0");
  require(options.max_backoff >= milliseconds(0), "max_backoff >= 0");
  require(options.max_in_flight > 0, "max_in_flight > 0");
  const milliseconds year = std::chrono::hours(24 * 365);  // longer is for ever: no overflow
  for (auto* const duration : {&options.timeout, &options.connect_timeout, &options.backoff}) {
    *duration = std::min(*duration, year);
  }
  return options;
}

}  // namespace bray::detail
