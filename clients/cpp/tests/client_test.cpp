// The synchronous client against a server of tests/test_cpp_client.py:
//
//     client_test SCENARIO PORT [ARGUMENT]
#include "bray/client.hpp"

#include <chrono>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "check.hpp"

using namespace std::chrono_literals;
using bray::Client;
using bray::Kind;
using bray::Options;
using bray::Reply;
using bray::Request;

namespace {

std::uint16_t port = 0;
std::string argument;

const char* const kHost = "127.0.0.1";

Options quick() {
  Options options;
  options.timeout = 10s;
  options.connect_timeout = 5s;
  options.connect_attempts = 2;
  options.backoff = 10ms;
  return options;
}

Options impatient() {
  Options options = quick();
  options.timeout = 200ms;
  options.connect_timeout = 200ms;
  return options;
}

void life() {
  Client client(kHost, port, quick());
  CHECK_EQUAL(client.start("game-1", "{}"), "started");
  const std::string body("\0\x01\xFF", 3);
  CHECK(client.tick("game-1", body) == body);
  CHECK_EQUAL(client.tick("game-1", ""), "");
  CHECK_EQUAL(client.tick("game-1", "who"), "game-1");
  CHECK_EQUAL(client.end("game-1"), "ended");
  CHECK_EQUAL(client.start("s\xC3\xA4ule"), "started");
  CHECK_EQUAL(client.tick("s\xC3\xA4ule", "who"), "s\xC3\xA4ule");
  client.ping();
  CHECK_EQUAL(client.num_connections(), 1U);
}

void errors() {
  Client client(kHost, port, quick());
  CHECK_THROWS(client.tick("nobody", ""), bray::ServiceError, "unknown_session");
  client.start("s");
  CHECK_THROWS(client.start("s"), bray::ServiceError, "session_exists");
  CHECK_THROWS(client.call("x"), bray::ServiceError, "bad_request");
  CHECK_THROWS(client.start(""), bray::ServiceError, "bad_session");
  CHECK_THROWS(client.start(std::string(257, 'x')), bray::Error, "bad_session");
  CHECK_THROWS(client.start("\xFF"), bray::ServiceError, "bad_session");
  CHECK_THROWS(client.start(std::string(70000, 'x')), bray::ServiceError, "bad_session");
  std::string message;
  Client other(kHost, port, quick());
  other.start("t");
  try {
    other.tick("t", "fail");
  } catch (const bray::ServiceError& error) {
    message = error.message();
    CHECK_EQUAL(std::string(error.what()), "service_error: " + message);
  }
  CHECK_EQUAL(message, "ValueError: no \"tick\" s\xC3\xA4ule \xF0\x9F\x8E\xAE");
  CHECK_EQUAL(other.tick("t", "on"), "on");
}

void exchange() {
  Client client(kHost, port, quick());
  std::vector<Request> starts, ticks;
  for (int i = 0; i < 100; ++i) {
    starts.push_back({Kind::start, "s" + std::to_string(i), ""});
    ticks.push_back({Kind::tick, "s" + std::to_string(i), i % 10 == 0 ? "sleep 0.05" : "who"});
  }
  for (const Reply& reply : client.exchange(starts)) CHECK_EQUAL(reply.body(), "started");
  const std::vector<Reply> replies = client.exchange(ticks);
  for (std::size_t i = 0; i < 100; ++i) {
    CHECK_EQUAL(replies[i].body(), i % 10 == 0 ? "slept" : "s" + std::to_string(i));
  }
  const std::vector<Reply> mixed = client.exchange(
      {{Kind::tick, "s1", "a"}, {Kind::tick, "x", ""}, {Kind::hello, "", ""}, {Kind::tick, "s2", "b"}});
  CHECK_EQUAL(mixed[0].body(), "a");
  CHECK_EQUAL(mixed[1].code(), "unknown_session");
  CHECK(!mixed[1].ok() && mixed[1].outcome() == bray::Outcome::service_error);
  CHECK_THROWS(mixed[1].body(), bray::ServiceError, "unknown_session");
  CHECK_EQUAL(mixed[2].code(), "bad_request");
  CHECK_EQUAL(mixed[3].body(), "b");
  CHECK(client.exchange({}).empty());
}

void token() {
  Options options = quick();
  options.token = "secret";
  CHECK_EQUAL(Client(kHost, port, options).start("s"), "started");
  options.token = "wrong";
  CHECK_THROWS(Client(kHost, port, options), bray::ServiceError, "unauthorized");
  options.token = "";
  CHECK_THROWS(Client(kHost, port, options), bray::ServiceError, "unauthorized");
}

void timeout() {
  Client client(kHost, port, impatient());
  client.start("s");
  CHECK_EQUAL(client.num_connections(), 1U);
  CHECK_THROWS(client.tick("s", "sleep 60"), bray::TimeoutError, "timeout");
  CHECK_THROWS(client.tick("s", ""), bray::ServiceError, "unknown_session");
  CHECK_EQUAL(client.num_connections(), 2U);
  client.start("a");
  client.start("b");
  const std::vector<Reply> replies =
      client.exchange({{Kind::tick, "a", "now"}, {Kind::tick, "b", "sleep 60"}});
  CHECK_EQUAL(replies[0].body(), "now");
  CHECK(replies[1].outcome() == bray::Outcome::timeout);
}

void big() {
  Client client(kHost, port, quick());
  std::string body(std::size_t{4} << 20, 'x');
  for (std::size_t i = 0; i < body.size(); i += 4096) body[i] = static_cast<char>(i >> 12);
  std::vector<Request> starts, ticks;
  for (int i = 0; i < 6; ++i) {
    starts.push_back({Kind::start, std::to_string(i), ""});
    ticks.push_back({Kind::tick, std::to_string(i), body});
  }
  client.exchange(starts);
  CHECK(client.tick("0", body) == body);
  for (const Reply& reply : client.exchange(ticks)) CHECK(reply.body() == body);
  CHECK_THROWS(client.tick("0", std::string((std::size_t{16} << 20) + 1, 'x')), bray::ServiceError,
               "body_too_large");
  CHECK_THROWS(client.tick("0", "gone"), bray::ServiceError, "unknown_session");

  Options narrow = quick();
  narrow.max_reply_bytes = 1000;
  Client other(kHost, port, narrow);
  other.start("n");
  CHECK(other.tick("n", std::string(1000, 'x')).size() == 1000);
  CHECK_THROWS(other.tick("n", std::string(1001, 'x')), bray::ConnectionError, "body_too_large");
}

void stateless() {
  Client client("localhost", port, quick());
  CHECK_EQUAL(client.call("hello"), "hello");
  CHECK_THROWS(client.start("s"), bray::ServiceError, "bad_request");
  Client moved = std::move(client);
  CHECK_EQUAL(moved.call("again"), "again");
  moved.close();
  CHECK_EQUAL(moved.call("after close"), "after close");
  CHECK_EQUAL(moved.num_connections(), 2U);
}

void ipv6() { CHECK_EQUAL(Client("::1", port, quick()).call("six"), "six"); }

void unreachable() {
  Options options = quick();
  options.connect_attempts = 3;
  options.backoff = 40ms;
  const auto began = std::chrono::steady_clock::now();
  CHECK_THROWS(Client(kHost, port, options), bray::ConnectionError, "unreachable");
  const auto took = std::chrono::steady_clock::now() - began;
  CHECK(took >= 120ms && took < 2s);  // waits of 40 and 80 ms
  CHECK_THROWS(Client("no-such-host.invalid", port, quick()), bray::ConnectionError, "unreachable");
}

void options() {
  const auto is_refused = [](const std::function<void(Options&)>& spoil) {
    Options bad;
    spoil(bad);
    try {
      Client(kHost, port, bad);
    } catch (const std::invalid_argument&) {
      return true;
    }
    return false;
  };
  CHECK(is_refused([](Options& o) { o.timeout = 0ms; }));
  CHECK(is_refused([](Options& o) { o.connect_timeout = -1ms; }));
  CHECK(is_refused([](Options& o) { o.connect_attempts = 0; }));
  CHECK(is_refused([](Options& o) { o.backoff = -1ms; }));
  CHECK(is_refused([](Options& o) { o.max_in_flight = 0; }));
  Options endless = quick();
  endless.timeout = std::chrono::milliseconds::max();
  CHECK_EQUAL(Client(kHost, port, endless).call("x"), "x");
}

/// The server is killed during a tick and comes back on its port.
void killed() {
  Client client(kHost, port, quick());
  client.start("s");
  CHECK_THROWS(client.tick("s", "die"), bray::ConnectionError, "connection_lost");
  CHECK_THROWS(client.tick("s", ""), bray::ConnectionError, "unreachable");
  tell_and_wait("lost");
  CHECK_THROWS(client.tick("s", ""), bray::ServiceError, "unknown_session");
  CHECK_EQUAL(client.start("s"), "started");
  CHECK_EQUAL(client.num_connections(), 2U);
  tell_and_wait("rest");  // the server restarts while the client rests
  CHECK_EQUAL(client.start("s"), "started");
  CHECK_EQUAL(client.num_connections(), 3U);
}

/// A server that answers a ping, and then does something bad: ARGUMENT is the code to expect.
void hostile() {
  Client client(kHost, port, quick());
  CHECK_THROWS(client.tick("s", "x"), bray::ConnectionError, argument);
}

/// A server that answers a ping, and then nothing.
void silent() {
  Client client(kHost, port, impatient());
  CHECK_THROWS(client.tick("s", "x"), bray::TimeoutError, "timeout");
}

/// A server that does not even answer a ping as it should.
void no_greeting() {
  Options options = quick();
  options.connect_timeout = 100ms;
  CHECK_THROWS(Client(kHost, port, options), bray::ConnectionError, argument);
}

/// A server that closes the connection after each answer.
void one_answer() {
  Client client(kHost, port, quick());
  CHECK_EQUAL(client.call("1"), "1");
  tell_and_wait("rest");
  CHECK_EQUAL(client.call("2"), "2");
  tell_and_wait("rest");
  client.ping();
  CHECK_EQUAL(client.num_connections(), 3U);
}

/// A server whose first connection breaks at the second ping.
void repeated_ping() {
  Client client(kHost, port, quick());
  client.ping();
  CHECK_EQUAL(client.num_connections(), 2U);
}

}  // namespace

int main(int argc, char** argv) {
  CHECK(argc >= 3);
  port = static_cast<std::uint16_t>(std::stoi(argv[2]));
  argument = argc > 3 ? argv[3] : "";
  const std::map<std::string, void (*)()> scenarios{
      {"life", life},         {"errors", errors},           {"exchange", exchange},
      {"token", token},       {"timeout", timeout},         {"big", big},
      {"ipv6", ipv6},         {"stateless", stateless},     {"unreachable", unreachable},
      {"options", options},   {"killed", killed},           {"hostile", hostile},
      {"silent", silent},     {"no_greeting", no_greeting}, {"one_answer", one_answer},
      {"repeated_ping", repeated_ping},
  };
  scenarios.at(argv[1])();
}
