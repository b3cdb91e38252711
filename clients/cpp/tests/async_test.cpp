// The client with callbacks against a server of tests/test_cpp_client.py:
//
//     async_test SCENARIO PORT
#include "bray/async_client.hpp"

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "check.hpp"

using namespace std::chrono_literals;
using bray::AsyncClient;
using bray::Callback;
using bray::Options;
using bray::Outcome;
using bray::Reply;

namespace {

std::uint16_t port = 0;

const char* const kHost = "127.0.0.1";

Options quick() {
  Options options;
  options.timeout = 10s;
  options.connect_attempts = 2;
  options.backoff = 10ms;
  return options;
}

/// Gathers replies, and notes a callback that is called twice.
class Gathered {
 public:
  explicit Gathered(std::size_t size) : replies_(size), num_calls_(size) {}

  Callback at(std::size_t index) {
    return [this, index](Reply reply) {
      const std::lock_guard<std::mutex> lock(mutex_);
      replies_[index] = std::move(reply);
      ++num_calls_[index];
      ++num_all_;
      changed_.notify_all();
    };
  }

  const std::vector<Reply>& wait() {
    std::unique_lock<std::mutex> lock(mutex_);
    CHECK(changed_.wait_for(lock, 20s, [this] { return num_all_ >= replies_.size(); }));
    for (const int num_calls : num_calls_) CHECK_EQUAL(num_calls, 1);
    return replies_;
  }

  std::size_t num_all() {
    const std::lock_guard<std::mutex> lock(mutex_);
    return num_all_;
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<Reply> replies_;
  std::vector<int> num_calls_;
  std::size_t num_all_ = 0;
};

std::string name(std::size_t i) { return "s" + std::to_string(i); }

Reply wait_for(const std::function<void(Callback)>& send) {
  Gathered one(1);
  send(one.at(0));
  return one.wait()[0];
}

void start_all(AsyncClient& client, std::size_t count) {
  Gathered started(count);
  for (std::size_t i = 0; i < count; ++i) client.start(name(i), "", started.at(i));
  for (const Reply& reply : started.wait()) CHECK_EQUAL(reply.body(), "started");
}

void flight() {
  constexpr std::size_t kSessions = 1000;
  AsyncClient client(kHost, port, quick());
  start_all(client, kSessions);
  Gathered ticks(kSessions);
  for (std::size_t i = 0; i < kSessions; ++i) {
    client.tick(name(i), i % 2 == 0 ? "sleep 0.1" : "who", ticks.at(i));
  }
  CHECK(client.num_in_flight() >= kSessions / 2);
  const std::vector<Reply>& replies = ticks.wait();
  for (std::size_t i = 0; i < kSessions; ++i) {
    CHECK_EQUAL(replies[i].body(), i % 2 == 0 ? "slept" : name(i));
  }
  Gathered ends(kSessions);
  for (std::size_t i = 0; i < kSessions; ++i) client.end(name(i), "", ends.at(i));
  for (const Reply& reply : ends.wait()) CHECK_EQUAL(reply.body(), "ended");
  CHECK_EQUAL(client.num_in_flight(), 0U);
  CHECK_EQUAL(client.num_connections(), 1U);
}

/// Plays a session by callbacks alone: each tick is sent by the callback of the one before.
struct Player : std::enable_shared_from_this<Player> {
  Player(AsyncClient& to, std::string named, Callback at_end)
      : client(to), session(std::move(named)), done(std::move(at_end)) {}

  void play(Reply reply) {
    const auto next = [self = shared_from_this()](Reply got) { self->play(std::move(got)); };
    if (!reply.ok() || num_ticks == 20) return client.end(session, "", done);
    client.tick(session, std::to_string(++num_ticks), next);
  }

  AsyncClient& client;
  std::string session;
  Callback done;
  int num_ticks = 0;
};

void threads() {
  constexpr std::size_t kThreads = 4;
  constexpr std::size_t kSessions = 25;
  AsyncClient client(kHost, port, quick());
  Gathered ends(kThreads * kSessions);
  std::vector<std::thread> threads;
  for (std::size_t thread = 0; thread < kThreads; ++thread) {
    threads.emplace_back([&, thread] {
      for (std::size_t i = 0; i < kSessions; ++i) {
        const std::size_t index = thread * kSessions + i;
        const auto player = std::make_shared<Player>(client, name(index), ends.at(index));
        client.start(name(index), "", [player](Reply got) { player->play(std::move(got)); });
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const Reply& reply : ends.wait()) CHECK_EQUAL(reply.body(), "ended");
}

void busy() {
  Options options = quick();
  options.max_in_flight = 8;
  AsyncClient client(kHost, port, options);
  start_all(client, 8);
  Gathered ticks(9);
  for (std::size_t i = 0; i < 8; ++i) client.tick(name(i), "sleep 0.2", ticks.at(i));
  const std::size_t before = ticks.num_all();
  client.tick(name(8), "", ticks.at(8));
  CHECK_EQUAL(ticks.num_all(), before + 1);  // at once
  const std::vector<Reply>& replies = ticks.wait();
  for (std::size_t i = 0; i < 8; ++i) CHECK_EQUAL(replies[i].body(), "slept");
  CHECK_EQUAL(replies[8].code(), "busy");
  CHECK_EQUAL(wait_for([&](Callback done) { client.tick(name(1), "who", done); }).body(), name(1));
  client.tick(name(2), "nobody listens", nullptr);
  CHECK_EQUAL(wait_for([&](Callback done) { client.start("\xFF", "", done); }).code(),
              "bad_session");
}

void close() {
  constexpr std::size_t kSessions = 200;
  Gathered ticks(kSessions + 1);
  {
    AsyncClient client(kHost, port, quick());
    start_all(client, kSessions);
    for (std::size_t i = 0; i < kSessions; ++i) client.tick(name(i), "sleep 60", ticks.at(i));
    std::thread other([&client] { client.close(); });
    client.close();
    CHECK_EQUAL(ticks.num_all(), kSessions);
    client.tick(name(0), "", ticks.at(kSessions));
    other.join();
  }
  for (const Reply& reply : ticks.wait()) CHECK_EQUAL(reply.code(), "connection_lost");
}

void close_in_callback() {
  Gathered replies(2);
  AsyncClient client(kHost, port, quick());
  client.start("s", "", [&](Reply reply) {
    client.close();
    client.tick("s", "", replies.at(1));
    replies.at(0)(std::move(reply));
  });
  CHECK_EQUAL(replies.wait()[0].body(), "started");
  CHECK_EQUAL(replies.wait()[1].code(), "connection_lost");
}

/// A request that is late leaves the others alone, and its late reply is dropped.
void timeout() {
  Options options = quick();
  options.timeout = 250ms;
  AsyncClient client(kHost, port, options);
  start_all(client, 2);
  const Reply late = wait_for([&](Callback done) { client.tick("s0", "sleep 0.6", done); });
  CHECK(late.outcome() == Outcome::timeout);
  CHECK_EQUAL(client.num_in_flight(), 1U);
  CHECK_EQUAL(wait_for([&](Callback done) { client.tick("s0", "", done); }).code(), "busy");
  const auto end = std::chrono::steady_clock::now() + 5s;
  while (client.num_in_flight() > 0 && std::chrono::steady_clock::now() < end) {
    CHECK_EQUAL(wait_for([&](Callback done) { client.tick("s1", "who", done); }).body(), "s1");
  }
  CHECK_EQUAL(wait_for([&](Callback done) { client.tick("s0", "who", done); }).body(), "s0");
  CHECK_EQUAL(client.num_connections(), 1U);
}

/// A server that answers the greeting and nothing else: the connection is given up.
void silent() {
  Options options = quick();
  options.timeout = 150ms;
  AsyncClient client(kHost, port, options);
  for (std::uint64_t i = 1; i <= 2; ++i) {
    const Reply late = wait_for([&](Callback done) { client.tick("s", "", done); });
    CHECK(late.outcome() == Outcome::timeout);
    const auto end = std::chrono::steady_clock::now() + 5s;
    while (client.num_in_flight() > 0) {
      CHECK(std::chrono::steady_clock::now() < end);
      std::this_thread::sleep_for(5ms);
    }
    CHECK_EQUAL(client.num_connections(), i);
  }
}

void killed() {
  constexpr std::size_t kSessions = 300;
  AsyncClient client(kHost, port, quick());
  start_all(client, kSessions);
  Gathered ticks(kSessions);
  for (std::size_t i = 1; i < kSessions; ++i) client.tick(name(i), "sleep 60", ticks.at(i));
  client.tick(name(0), "die", ticks.at(0));
  for (const Reply& reply : ticks.wait()) {
    CHECK(reply.outcome() == Outcome::connection_error);
    CHECK_EQUAL(reply.code(), "connection_lost");
  }
  const Reply gone = wait_for([&](Callback done) { client.start("s", "", done); });
  CHECK_EQUAL(gone.code(), "unreachable");
  tell_and_wait("lost");
  CHECK_EQUAL(wait_for([&](Callback done) { client.tick("s0", "", done); }).code(),
              "unknown_session");
  CHECK_EQUAL(wait_for([&](Callback done) { client.start("s0", "", done); }).body(), "started");
  CHECK_EQUAL(client.num_connections(), 2U);
  tell_and_wait("rest");  // the server restarts while the client rests
  CHECK_EQUAL(wait_for([&](Callback done) { client.start("s0", "", done); }).body(), "started");
  CHECK_EQUAL(client.num_connections(), 3U);
}

/// The server comes up after the first request was made.
void early() {
  Options options = quick();
  options.connect_attempts = 100;
  options.max_backoff = 50ms;
  AsyncClient client(kHost, port, options);
  Gathered started(1);
  client.start("s", "", started.at(0));
  tell_and_wait("waiting");
  CHECK_EQUAL(started.wait()[0].body(), "started");
}

void unreachable() {
  AsyncClient client(kHost, port, quick());
  CHECK_EQUAL(wait_for([&](Callback done) { client.call("", done); }).code(), "unreachable");
  Options options = quick();
  options.timeout = 50ms;
  options.backoff = 10s;
  options.max_backoff = 10s;
  AsyncClient patient(kHost, port, options);
  CHECK_EQUAL(wait_for([&](Callback done) { patient.call("", done); }).code(), "timeout");
}

void token() {
  Options options = quick();
  options.token = "secret";
  AsyncClient good(kHost, port, options);
  CHECK_EQUAL(wait_for([&](Callback done) { good.start("s", "", done); }).body(), "started");
  options.token = "wrong";
  AsyncClient bad(kHost, port, options);
  CHECK_EQUAL(wait_for([&](Callback done) { bad.start("s", "", done); }).code(), "unauthorized");
}

void big() {
  AsyncClient client(kHost, port, quick());
  const std::string body(std::size_t{4} << 20, 'x');
  start_all(client, 6);
  Gathered ticks(6);
  for (std::size_t i = 0; i < 6; ++i) client.tick(name(i), body, ticks.at(i));
  for (const Reply& reply : ticks.wait()) CHECK(reply.body() == body);
}

}  // namespace

int main(int argc, char** argv) {
  CHECK(argc == 3);
  port = static_cast<std::uint16_t>(std::stoi(argv[2]));
  const std::map<std::string, void (*)()> scenarios{
      {"flight", flight},   {"threads", threads},
      {"busy", busy},       {"close", close},
      {"timeout", timeout}, {"close_in_callback", close_in_callback},
      {"silent", silent},   {"killed", killed},
      {"early", early},     {"unreachable", unreachable},
      {"token", token},     {"big", big},
  };
  scenarios.at(argv[1])();
}
