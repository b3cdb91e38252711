// A client with callbacks: many requests in flight, from any thread, over one connection.
//
//     bray::AsyncClient client("127.0.0.1", 7300);
//     client.tick("game-1", observation, [](bray::Reply reply) {
//       if (reply.ok()) apply(reply.body());
//     });
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <mutex>
#include <string>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "bray/detail/engine.hpp"
#include "bray/detail/socket.hpp"
#include "bray/types.hpp"

namespace bray {

/// Called with the reply of a request, exactly once. It must not throw. May be empty.
using Callback = std::function<void(Reply)>;

/// Calls a server from a background thread. All methods may be called by any thread, and from
/// callbacks; only the destructor may not run in a callback.
///
/// Callbacks run on the background thread, one at a time: a slow one delays all others. The
/// exception: a request that is not accepted (`busy`: more than `Options::max_in_flight`;
/// `connection_lost`: the client is closed) is answered at once, on the calling thread.
///
/// It connects with the first request and again after a loss. Then requests of which a byte was
/// written fail as `connection_lost`, the others are sent on the new connection, where sessions
/// must be started again (`unknown_session`). A request that is late gets its `timeout`, while the
/// connection with its other sessions stays, unless the server answers a ping no more either; until
/// its reply is there it counts as in flight.
class AsyncClient {
 public:
  /// Start the thread; connects later.
  ///
  /// Args:
  ///   host: a name or an address, IPv4 or IPv6 (without brackets). Resolving a name blocks the
  ///     background thread.
  ///
  /// Throws std::system_error if the process has no more threads or file descriptors.
  AsyncClient(std::string host, std::uint16_t port, Options options = {})
      : max_in_flight_(static_cast<std::ptrdiff_t>(options.max_in_flight)),
        engine_(std::move(host), port, std::move(options), detail::OnTimeout::probe) {
    open_pipe();
    thread_ = std::thread([this] { run(); });
    thread_id_ = thread_.get_id();
  }

  AsyncClient(const AsyncClient&) = delete;
  AsyncClient& operator=(const AsyncClient&) = delete;

  ~AsyncClient() { close(); }

  /// Start a session.
  void start(std::string session, std::string body, Callback callback) {
    submit({Kind::start, std::move(session), std::move(body)}, std::move(callback));
  }

  /// Send one tick of a session. A session has one request under way at a time: send the next one
  /// when the reply is there.
  void tick(std::string session, std::string body, Callback callback) {
    submit({Kind::tick, std::move(session), std::move(body)}, std::move(callback));
  }

  /// End a session.
  void end(std::string session, std::string body, Callback callback) {
    submit({Kind::end, std::move(session), std::move(body)}, std::move(callback));
  }

  /// Call a stateless service.
  void call(std::string body, Callback callback) {
    submit({Kind::call, {}, std::move(body)}, std::move(callback));
  }

  /// Send any request.
  void submit(Request request, Callback callback) {
    const Reply accepted = accept(request, callback);
    if (!accepted.ok() && callback) callback(accepted);
  }

  /// Requests without a reply.
  std::size_t num_in_flight() const noexcept {
    return static_cast<std::size_t>(engine_.num_held.load());
  }

  /// Connections made so far; when it grows, the sessions started before are gone.
  std::uint64_t num_connections() const noexcept { return engine_.num_connections; }

  /// Close the connection; what is in flight gets `connection_lost`. When this returns all
  /// callbacks have run, but for the one that calls it, if one does.
  void close() {
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      is_closed_ = true;
      wake();
    }
    if (std::this_thread::get_id() == thread_id_) return;
    const std::lock_guard<std::mutex> lock(join_mutex_);
    if (thread_.joinable()) thread_.join();
  }

 private:
  using Submitted = std::vector<std::pair<Request, Callback>>;

  static Reply closed() {
    return detail::connection_error("connection_lost", "the client is closed");
  }

  /// Hand a request to the background thread, or say why not.
  Reply accept(Request& request, Callback& callback) {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (is_closed_) return closed();
    if (engine_.num_held >= max_in_flight_) {
      return Reply::failure(Outcome::service_error, "busy",
                            "max_in_flight requests have no reply yet: wait for one");
    }
    ++engine_.num_held;
    submitted_.emplace_back(std::move(request), std::move(callback));
    if (submitted_.size() == 1) wake();
    return Reply::answer("");
  }

  void open_pipe() {
    int ends[2];
    if (::pipe(ends) != 0) throw std::system_error(errno, std::generic_category(), "pipe");
    wake_in_ = detail::Descriptor(ends[0]);
    wake_out_ = detail::Descriptor(ends[1]);
    detail::make_private_and_non_blocking(ends[0]);
    detail::make_private_and_non_blocking(ends[1]);
  }

  void wake() {
    const char byte = 0;
    // A full pipe wakes as well.
    [[maybe_unused]] const ssize_t written = ::write(wake_out_.get(), &byte, 1);
  }

  /// The background thread.
  void run() {
    for (;;) {
      Submitted submitted;
      bool is_last = false;
      take(submitted, is_last);
      for (auto& [request, callback] : submitted) {
        engine_.submit(std::move(request), std::move(callback));
      }
      if (is_last) break;
      engine_.step(detail::Clock::time_point::max(), wake_in_.get());
    }
    engine_.fail_all(closed());
  }

  void take(Submitted& submitted, bool& is_last) {
    char bytes[64];
    while (::read(wake_in_.get(), bytes, sizeof bytes) > 0) {
    }
    const std::lock_guard<std::mutex> lock(mutex_);
    submitted.swap(submitted_);
    is_last = is_closed_;
  }

  const std::ptrdiff_t max_in_flight_;
  detail::Engine engine_;  // the background thread's, but for num_held
  detail::Descriptor wake_in_;
  detail::Descriptor wake_out_;
  std::mutex mutex_;
  Submitted submitted_;
  bool is_closed_ = false;
  std::mutex join_mutex_;
  std::thread thread_;
  std::thread::id thread_id_;
};

}  // namespace bray
