// A client for bray's binary TCP protocol: C++17, POSIX sockets, no dependencies.
//
//     bray::Client client("127.0.0.1", 7300);
//     client.start("game-1", "{}");
//     std::string action = client.tick("game-1", observation);
//     client.end("game-1", "");
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "bray/detail/engine.hpp"
#include "bray/errors.hpp"
#include "bray/types.hpp"

namespace bray {

/// Calls a server over one connection, and waits for the replies. Not thread-safe: one client a
/// thread, or AsyncClient.
///
/// A connection that was lost is made anew by the next request. Nothing that may have been
/// executed is sent twice: a request fails as `connection_lost` as soon as a byte of it was written
/// to a connection that broke. Sessions are bound to their connection: after a new one
/// (`num_connections` tells) the server answers `unknown_session`, and they must be started again.
class Client {
 public:
  /// Connect.
  ///
  /// Args:
  ///   host: a name or an address, IPv4 or IPv6 (without brackets).
  ///
  /// Throws ConnectionError (`unreachable`), ServiceError (`unauthorized`), TimeoutError.
  Client(std::string host, std::uint16_t port, Options options = {})
      : timeout_(detail::checked(options).timeout),
        engine_(std::make_unique<detail::Engine>(std::move(host), port, std::move(options),
                                                 detail::OnTimeout::close)) {
    ping();
  }

  /// Start a session and return the reply.
  ///
  /// Throws ServiceError: what the server says; ConnectionError, TimeoutError: see there.
  std::string start(std::string_view session, std::string_view body = {}) {
    return request(Kind::start, session, body);
  }

  /// Send one tick of a session and return the reply; throws as `start`.
  std::string tick(std::string_view session, std::string_view body) {
    return request(Kind::tick, session, body);
  }

  /// End a session and return the reply; throws as `start`.
  std::string end(std::string_view session, std::string_view body = {}) {
    return request(Kind::end, session, body);
  }

  /// Call a stateless service; throws as `start`.
  std::string call(std::string_view body) { return request(Kind::call, {}, body); }

  /// Ask whether the server is there; throws as `start`.
  void ping() {
    Reply reply;
    std::size_t num_missing = 1;
    run(num_missing, [&] {
      ++engine_->num_held;
      engine_->submit_ping([&](Reply got) {
        reply = std::move(got);
        --num_missing;
      });
    });
    reply.throw_if_failed();
  }

  /// Send many requests at once and gather their replies, in the order of the requests. They are
  /// executed side by side, so that each should be of another session. Throws none of their
  /// errors: each is in its reply.
  ///
  /// A `start` that is answered `not_ready` is sent again until it is taken, or the time-out is
  /// over: nothing was executed, the policy is still being made.
  std::vector<Reply> exchange(std::vector<Request> requests) {
    const auto deadline = detail::Clock::now() + timeout_;
    std::vector<Request> starts(requests.size());
    for (std::size_t i = 0; i < requests.size(); ++i) {
      if (requests[i].kind == Kind::start) starts[i] = requests[i];
    }
    std::vector<Reply> replies = exchange_once(std::move(requests));
    for (;;) {
      std::vector<std::size_t> waiting;
      std::vector<Request> again;
      for (std::size_t i = 0; i < replies.size(); ++i) {
        if (starts[i].kind != Kind::start || replies[i].code() != "not_ready") continue;
        waiting.push_back(i);
        again.push_back(starts[i]);
      }
      if (waiting.empty() || detail::Clock::now() + kRetryAfter >= deadline) return replies;
      std::this_thread::sleep_for(kRetryAfter);
      std::vector<Reply> later = exchange_once(std::move(again));
      for (std::size_t k = 0; k < waiting.size(); ++k) {
        // The one that was not ready makes way for the one that is: it may be gone for a moment.
        if (later[k].outcome() == Outcome::connection_error) continue;
        replies[waiting[k]] = std::move(later[k]);
      }
    }
  }

  /// Close the connection, so that the server aborts the sessions started on it. The next request
  /// connects again.
  void close() { engine_->forget_all(); }

  /// Connections made so far; when it grows, the sessions started before are gone.
  std::uint64_t num_connections() const noexcept { return engine_->num_connections; }

 private:
  static constexpr std::chrono::milliseconds kRetryAfter{500};

  std::vector<Reply> exchange_once(std::vector<Request> requests) {
    std::vector<Reply> replies(requests.size());
    std::size_t num_missing = requests.size();
    run(num_missing, [&] {
      for (std::size_t i = 0; i < requests.size(); ++i) {
        ++engine_->num_held;
        engine_->submit(std::move(requests[i]), [&replies, &num_missing, i](Reply got) {
          replies[i] = std::move(got);
          --num_missing;
        });
      }
    });
    return replies;
  }

  std::string request(Kind kind, std::string_view session, std::string_view body) {
    std::vector<Request> requests;
    requests.push_back({kind, std::string(session), std::string(body)});
    return std::move(exchange(std::move(requests)).front()).body();
  }

  template <typename Submit>
  void run(const std::size_t& num_missing, const Submit& submit) {
    try {
      submit();
      while (num_missing > 0) engine_->step(detail::Clock::time_point::max());
    } catch (...) {  // out of memory: what was submitted refers to variables that go now
      engine_->forget_all();
      throw;
    }
  }

  std::chrono::milliseconds timeout_;
  std::unique_ptr<detail::Engine> engine_;
};

}  // namespace bray
