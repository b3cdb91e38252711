// One connection and the requests on it: what Client and AsyncClient have in common. It has no
// thread and no lock; whoever owns it calls `step` until the replies are there.
//
//     idle ──request──▶ connecting ──▶ handshake ──▶ ready
//       ▲                  │              │            │ lost: what was written fails,
//       │◀──attempts spent─┴──▶ backoff ◀─┘            │ what was not is sent on a new connection
//       └──────────────────────────────────────────────┘
#pragma once

#include <poll.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <list>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "bray/detail/checks.hpp"
#include "bray/detail/json.hpp"
#include "bray/detail/outbox.hpp"
#include "bray/detail/socket.hpp"
#include "bray/frames.hpp"
#include "bray/types.hpp"

namespace bray::detail {

using Clock = std::chrono::steady_clock;
using Completion = std::function<void(Reply)>;

/// What a request without a reply does to its connection.
enum class OnTimeout {
  close,  // nothing that comes late can be mistaken, or be of use
  probe,  // other requests go on; if the server answers no ping either, the connection is lost
};

/// See the top of the file.
class Engine {
 public:
  Engine(std::string host, std::uint16_t port, Options options, OnTimeout on_timeout)
      : host_(std::move(host)),
        port_(port),
        options_(checked(std::move(options))),
        on_timeout_(on_timeout),
        parser_(options_.max_reply_bytes),
        received_(kReceiveBytes) {}

  /// Take a request, for which `num_held` was raised. `done`, unless empty, is called once, by
  /// `step` or `fail_all`.
  void submit(Request request, Completion done) {
    Reply refusal = check_request(request);
    if (!refusal.ok()) {
      --num_held;
      completed_.emplace_back(std::move(done), std::move(refusal));
      return;
    }
    if (request.kind == Kind::call) request.session.clear();
    add(request.kind, request.session, request.body, std::move(done));
  }

  /// Take a ping, which may be sent again on a new connection.
  void submit_ping(Completion done) { add(Kind::ping, "", "", std::move(done)); }

  /// Wait until something happens, at most until `until` or something to read at `wake_fd`, and
  /// do what there is to do.
  void step(Clock::time_point until, int wake_fd = -1) {
    begin_if_needed(Clock::now());
    if (!completed_.empty()) until = Clock::now();
    std::array<pollfd, 2> fds{
        {{socket_.get(), wanted_events(), 0}, {wake_fd, POLLIN, 0}}};
    const int num_ready = ::poll(fds.data(), fds.size(), wait_ms(until));
    if (num_ready > 0 && fds[0].revents != 0) handle(fds[0].revents);
    expire(Clock::now());
    deliver();
  }

  /// Fail all requests and close the connection.
  void fail_all(const Reply& why) {
    close_socket(State::idle);
    outbox_.clear();
    for (const std::uint32_t id : std::vector<std::uint32_t>(by_age_.begin(), by_age_.end())) {
      complete(id, why);
    }
    forget_reported();
    deliver();
  }

  /// Forget all requests without completing them, and close the connection.
  void forget_all() noexcept {
    close_socket(State::idle);
    outbox_.clear();
    pending_.clear();
    by_age_.clear();
    completed_.clear();
    num_held = 0;
  }

  /// Requests without a reply; also late ones whose time-out was reported. Any thread may raise and
  /// read it; it falls here when a request needs its place no more.
  std::atomic<std::ptrdiff_t> num_held{0};

  /// Connections made so far. Any thread may read it.
  std::atomic<std::uint64_t> num_connections{0};

 private:
  enum class State { idle, backoff, connecting, handshake, ready };

  /// A request without a reply.
  struct Pending {
    Kind kind{};
    Completion done;
    Clock::time_point deadline;
    std::list<std::uint32_t>::iterator place;  // in by_age_, unless reported
    bool begun = false;                        // a byte of it was written
    Clock::time_point begun_at;
    bool reported = false;                     // its time-out: what comes later is dropped
    bool repeated = false;                     // a ping on its second connection
  };

  static constexpr std::size_t kReceiveBytes = std::size_t{256} << 10;
  static constexpr Clock::time_point kNever = Clock::time_point::max();

  // Requests.

  void add(Kind kind, std::string_view session, std::string_view body, Completion done) {
    const std::uint32_t id = next_id();
    outbox_.push_request(id, pack_frame(kind, id, session, body));
    by_age_.push_back(id);
    Pending& request = pending_[id];
    request.kind = kind;
    request.done = std::move(done);
    request.deadline = Clock::now() + options_.timeout;
    request.place = std::prev(by_age_.end());
  }

  std::uint32_t next_id() {
    do {
      ++last_id_;
    } while (last_id_ == 0 || pending_.count(last_id_) != 0);  // 0 is for what has no request
    return last_id_;
  }

  void complete(std::uint32_t id, Reply reply) {
    const auto found = pending_.find(id);
    if (!found->second.reported) {
      by_age_.erase(found->second.place);
      completed_.emplace_back(std::move(found->second.done), std::move(reply));
    }
    pending_.erase(found);
    --num_held;
  }

  /// No reply comes any more to requests that were late.
  void forget_reported() {
    for (auto one = pending_.begin(); one != pending_.end();) {
      if (one->second.reported) {
        one = pending_.erase(one);
        --num_held;
      } else {
        ++one;
      }
    }
  }

  /// Call what is complete: last, as a callback may do anything.
  void deliver() {
    std::vector<std::pair<Completion, Reply>> completed;
    completed.swap(completed_);
    for (auto& [done, reply] : completed) {
      if (done) done(std::move(reply));
    }
  }

  // Time.

  int wait_ms(Clock::time_point until) const {
    until = std::min({until, deadline_, probe_deadline_});
    if (!by_age_.empty()) until = std::min(until, pending_.at(by_age_.front()).deadline);
    if (until == kNever) return -1;
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(until - Clock::now()).count();
    return static_cast<int>(std::clamp<decltype(left + 0)>(left, 0, 3'600'000));
  }

  void expire(Clock::time_point now) {
    if (state_ == State::connecting && now >= deadline_) {
      connect_next("timed out");
    } else if (state_ == State::handshake && now >= deadline_) {
      lost("no answer to the first frame in time");
    }
    if (now >= probe_deadline_) {
      lost("no answer to a ping in time");
    }
    bool has_begun = false;
    while (!by_age_.empty() && pending_.at(by_age_.front()).deadline <= now) {
      has_begun = time_out(by_age_.front()) || has_begun;
    }
    if (has_begun && on_timeout_ == OnTimeout::close) {
      lost("closed after a time-out");
    }
  }

  /// Report a time-out; returns whether the server may have seen the request.
  bool time_out(std::uint32_t id) {
    Pending& late = pending_.at(id);
    const std::string limit = std::to_string(options_.timeout.count()) + " ms";
    const Reply why = Reply::failure(Outcome::timeout, "timeout",
                                     name() + ": no reply within " + limit + problem_suffix());
    if (!late.begun) {
      outbox_.remove(id);
      complete(id, why);
      return false;
    }
    by_age_.erase(late.place);
    late.reported = true;
    completed_.emplace_back(std::move(late.done), why);
    if (on_timeout_ == OnTimeout::probe && last_received_ < late.begun_at) probe();
    return true;
  }

  void probe() {
    if (probe_deadline_ != kNever || state_ != State::ready) return;
    const std::uint32_t id = next_id();
    outbox_.push_probe(id, pack_frame(Kind::ping, id, "", ""));
    probe_deadline_ = Clock::now() + options_.timeout;
  }

  // Connecting.

  void begin_if_needed(Clock::time_point now) {
    if (state_ == State::backoff && now >= deadline_) enter(State::idle);
    if (state_ != State::idle) return;
    if (outbox_.empty()) {
      num_attempts_ = 0;
      return;
    }
    ++num_attempts_;
    attempt_deadline_ = now + options_.connect_timeout;
    std::string problem;
    addresses_ = resolve(host_, port_, problem);
    std::reverse(addresses_.begin(), addresses_.end());  // taken from the back
    connect_next(problem);
  }

  void enter(State state, Clock::time_point deadline = kNever) {
    state_ = state;
    deadline_ = deadline;
  }

  /// Go on with the next address of the host; `problem` is what was wrong with the one before.
  void connect_next(std::string problem) {
    while (!addresses_.empty()) {
      const SocketAddress address = addresses_.back();
      const auto num_left = static_cast<int>(addresses_.size());
      addresses_.pop_back();
      int error = 0;
      socket_ = begin_connect(address, error);
      if (socket_.is_open()) {
        const Clock::time_point now = Clock::now();
        enter(State::connecting, now + (attempt_deadline_ - now) / num_left);
        return;
      }
      problem = error_text(error);
    }
    attempt_failed(problem);
  }

  void attempt_failed(const std::string& problem) {
    last_problem_ = problem;
    close_socket(State::idle);
    if (num_attempts_ < options_.connect_attempts) {
      const auto factor = std::int64_t{1} << std::min(num_attempts_ - 1, 20);
      const auto wait = std::min(options_.backoff * factor, options_.max_backoff);
      enter(State::backoff, Clock::now() + wait);
      return;
    }
    num_attempts_ = 0;
    refuse_all(connection_error("unreachable", name() + ": " + problem));
  }

  /// There is no point in trying again now: fail what waits for a connection, which is all.
  void refuse_all(const Reply& why) {
    close_socket(State::idle);
    num_attempts_ = 0;
    outbox_.clear();
    while (!by_age_.empty()) complete(by_age_.front(), why);
    forget_reported();
  }

  void begin_handshake() {
    addresses_.clear();
    handshake_id_ = next_id();
    const Kind kind = options_.token.empty() ? Kind::ping : Kind::hello;
    outbox_.push_greeting(handshake_id_, pack_frame(kind, handshake_id_, "", options_.token));
    enter(State::handshake, attempt_deadline_);
    write();
  }

  // Input and output.

  short wanted_events() const {
    switch (state_) {
      case State::connecting: return POLLOUT;
      case State::handshake: return outbox_.begins_with(handshake_id_) ? POLLIN | POLLOUT : POLLIN;
      case State::ready: return outbox_.empty() ? POLLIN : POLLIN | POLLOUT;
      default: return 0;
    }
  }

  void handle(short events) {
    if (state_ == State::connecting) {
      const int error = connect_error(socket_.get());
      if (error != 0) {
        connect_next(error_text(error));
      } else {
        begin_handshake();
      }
      return;
    }
    // Reading first: a server that is gone is noticed before anything is written to it.
    if ((events & ~POLLOUT) != 0) read();
    if ((events & POLLOUT) != 0 && socket_.is_open()) write();
  }

  void write() {
    const auto note_begun = [this, now = Clock::now()](std::uint32_t id) {
      const auto found = pending_.find(id);
      if (found == pending_.end() || found->second.begun) return;
      found->second.begun = true;
      found->second.begun_at = now;
    };
    while ((wanted_events() & POLLOUT) != 0) {
      const std::size_t most = state_ == State::handshake ? 1 : outbox_.kMaxParts;
      if (!outbox_.send(socket_.get(), most, note_begun)) {
        if (!would_block(errno)) read_last_words(errno);
        return;
      }
    }
  }

  /// Writing failed: the server may have said why before it closed.
  void read_last_words(int error) {
    while (socket_.is_open() && read()) {
    }
    if (socket_.is_open()) lost(error_text(error));
  }

  bool read() {
    const ssize_t size = receive(socket_.get(), received_.data(), received_.size());
    if (size < 0 && would_block(errno)) return false;
    if (size <= 0) {
      const std::string what = size < 0                      ? error_text(errno)
                               : parser_.pending_bytes() > 0 ? "closed in the middle of a frame"
                                                             : "closed by the server";
      lost(what);
      return false;
    }
    last_received_ = Clock::now();
    probe_deadline_ = kNever;
    take({received_.data(), static_cast<std::size_t>(size)});
    return true;
  }

  void take(std::string_view data) {
    try {
      parser_.feed(data);
      for (Frame frame; socket_.is_open() && parser_.next(frame);) dispatch(frame);
    } catch (const FrameError& error) {
      broken(error.code(), error.message());
    }
  }

  void dispatch(const Frame& frame) {
    if (frame.kind != Kind::reply && frame.kind != Kind::error && frame.kind != Kind::pong) {
      return broken("bad_frame", "a frame that is not for servers to send");
    }
    if (state_ == State::handshake) return finish_handshake(frame);
    const auto found = pending_.find(frame.request_id);
    const bool is_known = found != pending_.end() && found->second.begun;
    if (frame.kind == Kind::error) {
      const ErrorBody said = read_error_body(frame.body);
      if (!is_known) return lost(describe(said));
      complete(frame.request_id, Reply::failure(Outcome::service_error, said.code, said.message));
      if (closes_connection(said.code)) lost(describe(said));
      return;
    }
    if (frame.kind == Kind::pong && !is_known) return;  // to a probe: that something came counts
    if (!is_known || (frame.kind == Kind::pong) != (found->second.kind == Kind::ping)) {
      return broken("bad_frame", "a reply to no request");
    }
    complete(frame.request_id, Reply::answer(std::string(frame.body)));
  }

  void finish_handshake(const Frame& frame) {
    if (frame.kind == Kind::error) {
      const ErrorBody said = read_error_body(frame.body);
      return refuse_all(Reply::failure(Outcome::service_error, said.code, said.message));
    }
    const Kind wanted = options_.token.empty() ? Kind::pong : Kind::reply;
    if (frame.kind != wanted || frame.request_id != handshake_id_) {
      return broken("bad_frame", "an answer to nothing");
    }
    enter(State::ready);
    num_attempts_ = 0;
    ++num_connections;
    write();
  }

  static std::string describe(const ErrorBody& said) {
    return "the server closed it: " + said.code + ": " + said.message;
  }

  /// Whether the server closes the connection after this error.
  static bool closes_connection(const std::string& code) {
    return code == "bad_frame" || code == "body_too_large" || code == "unauthorized";
  }

  // The end of a connection.

  /// What came is not the protocol: to connect again would not help.
  void broken(const std::string& code, const std::string& message) {
    if (state_ == State::handshake) {
      refuse_all(connection_error(code, name() + ": " + message));
    } else {
      lost(message, code);
    }
  }

  /// The connection is gone. What was written fails; the rest is sent on the next connection.
  void lost(const std::string& problem, const std::string& code = "connection_lost") {
    const bool was_handshake = state_ == State::handshake;
    close_socket(State::idle);
    const Reply why = connection_error(code, name() + ": " + problem);
    for (const std::uint32_t id : std::vector<std::uint32_t>(by_age_.begin(), by_age_.end())) {
      Pending& request = pending_.at(id);
      if (!request.begun) continue;
      if (request.kind == Kind::ping && !request.repeated) {
        request.begun = false;
        request.repeated = true;
        outbox_.push_request(id, pack_frame(Kind::ping, id, "", ""));
      } else {
        complete(id, why);
      }
    }
    forget_reported();
    last_problem_ = problem;
    if (was_handshake) attempt_failed(problem);
  }

  /// Close the socket and forget what belongs to it, but no request.
  void close_socket(State next) noexcept {
    socket_.reset();
    parser_ = FrameParser(options_.max_reply_bytes);
    probe_deadline_ = kNever;
    outbox_.reset_connection();
    enter(next);
  }

  std::string name() const { return host_ + ":" + std::to_string(port_); }

  std::string problem_suffix() const {
    const bool is_connected = state_ == State::ready || last_problem_.empty();
    return is_connected ? "" : " (not connected: " + last_problem_ + ")";
  }

  const std::string host_;
  const std::uint16_t port_;
  const Options options_;
  const OnTimeout on_timeout_;

  State state_ = State::idle;
  Descriptor socket_;
  Clock::time_point deadline_ = kNever;  // of the state
  Clock::time_point attempt_deadline_ = kNever;
  Clock::time_point probe_deadline_ = kNever;
  Clock::time_point last_received_{};
  std::vector<SocketAddress> addresses_;
  int num_attempts_ = 0;
  std::string last_problem_;
  std::uint32_t handshake_id_ = 0;

  FrameParser parser_;
  std::vector<char> received_;
  Outbox outbox_;
  std::uint32_t last_id_ = 0;
  std::unordered_map<std::uint32_t, Pending> pending_;
  std::list<std::uint32_t> by_age_;  // pending and not timed out, so that deadlines ascend
  std::vector<std::pair<Completion, Reply>> completed_;
};

}  // namespace bray::detail
