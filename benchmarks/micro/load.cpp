// A load generator for server.py: keep-alive connections, one request under way on each.
//
//     load PROTOCOL PORT CONNECTIONS BODY_BYTES SECONDS [WARMUP_SECONDS]
//
// PROTOCOL: raw   u32 length + body, echoed as it is
//           tcp   bray's binary protocol: a session for each connection, ticks
//           call  bray's binary protocol: stateless calls
//           http  POST /step, a session for each connection, ticks
//           post  POST /step without sessions
//           whole BODY_BYTES is an HTTP request as it is
// BODY_BYTES: a number, or @FILE for the contents of a file.
// Prints one JSON line: requests, seconds, per_s, p50_us, p99_us, errors.
#include <arpa/inet.h>
#include <netinet/tcp.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

using Clock = std::chrono::steady_clock;

static std::string little(uint64_t value, int bytes) {
  std::string out;
  for (int i = 0; i < bytes; ++i) out += static_cast<char>(value >> (8 * i));
  return out;
}

static std::string frame(int kind, const std::string& session, const std::string& body) {
  return std::string("BRY\x01", 4) + char(kind) + char(0) + little(session.size(), 2) +
         little(1, 4) + little(body.size(), 4) + session + body;
}

static std::string post(const char* kind, const std::string& session, const std::string& body) {
  std::string head = "POST /step HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: " +
                     std::to_string(body.size()) + "\r\n";
  if (kind) head += "session: " + session + "\r\nstep_kind: " + kind + "\r\n";
  return head + "\r\n" + body;
}

struct Connection {
  int socket = -1;
  std::string start, request, in;
  size_t in_used = 0;
  bool is_started = false;
  Clock::time_point sent;
};

enum class Framing { raw, bray, http };

// Returns the size of the reply at the front of `in`, or 0 if it is not whole; sets `failed`.
static size_t whole(Framing framing, const std::string& in, size_t size, bool& failed) {
  if (framing == Framing::raw) {
    if (size < 4) return 0;
    uint32_t body;
    memcpy(&body, in.data(), 4);
    return size >= 4 + body ? 4 + body : 0;
  }
  if (framing == Framing::bray) {
    if (size < 16) return 0;
    uint16_t name;
    uint32_t body;
    memcpy(&name, in.data() + 6, 2);
    memcpy(&body, in.data() + 12, 4);
    failed = in[4] != 5;
    return size >= 16 + name + body ? 16 + name + body : 0;
  }
  const char* end = static_cast<const char*>(memmem(in.data(), size, "\r\n\r\n", 4));
  if (!end) return 0;
  size_t head = end - in.data() + 4;
  failed = in.compare(9, 3, "200") != 0;
  std::string lower(in.data(), head);
  std::transform(lower.begin(), lower.end(), lower.begin(), ::tolower);
  size_t at = lower.find("content-length:");
  if (at == std::string::npos) {
    if (lower.find("transfer-encoding:") == std::string::npos) return head;
    const char* last = static_cast<const char*>(memmem(end, size - head + 4, "\r\n0\r\n\r\n", 7));
    return last ? last - in.data() + 7 : 0;
  }
  size_t body = strtoul(lower.c_str() + at + 15, nullptr, 10);
  return size >= head + body ? head + body : 0;
}

static void send_all(Connection& connection, const std::string& data) {
  connection.sent = Clock::now();
  size_t at = 0;
  while (at < data.size()) {
    ssize_t n = send(connection.socket, data.data() + at, data.size() - at, MSG_NOSIGNAL);
    if (n <= 0) {
      perror("send");
      exit(1);
    }
    at += n;
  }
}

static std::string contents(const char* path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) {
    perror(path);
    exit(2);
  }
  return std::string(std::istreambuf_iterator<char>(file), {});
}

int main(int argc, char** argv) {
  if (argc < 6) {
    fprintf(stderr, "load PROTOCOL PORT CONNECTIONS BODY_BYTES SECONDS [WARMUP_SECONDS]\n");
    return 2;
  }
  const std::string protocol = argv[1];
  const int port = atoi(argv[2]), count = atoi(argv[3]);
  const std::string body = argv[4][0] == '@' ? contents(argv[4] + 1) : std::string(atoi(argv[4]), 'x');
  const double seconds = atof(argv[5]), warmup = argc > 6 ? atof(argv[6]) : 0.5;
  const Framing framing = protocol == "raw" ? Framing::raw
                          : protocol == "tcp" || protocol == "call" ? Framing::bray
                                                                    : Framing::http;
  int poll = epoll_create1(0);
  std::vector<Connection> connections(count);
  for (int i = 0; i < count; ++i) {
    Connection& c = connections[i];
    c.socket = socket(AF_INET, SOCK_STREAM, 0);
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(port);
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    if (connect(c.socket, reinterpret_cast<sockaddr*>(&address), sizeof address)) {
      perror("connect");
      return 1;
    }
    int one = 1;
    setsockopt(c.socket, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    epoll_event event{};
    event.events = EPOLLIN;
    event.data.u32 = i;
    epoll_ctl(poll, EPOLL_CTL_ADD, c.socket, &event);
    std::string session = "load-" + std::to_string(getpid()) + "-" + std::to_string(i);
    if (protocol == "raw") c.request = little(body.size(), 4) + body;
    if (protocol == "tcp") c.start = frame(1, session, ""), c.request = frame(2, session, body);
    if (protocol == "call") c.request = frame(4, "", body);
    if (protocol == "http") c.start = post("start", session, ""), c.request = post("tick", session, body);
    if (protocol == "post") c.request = post(nullptr, "", body);
    if (protocol == "whole") c.request = body;
    c.is_started = c.start.empty();
    c.in.resize(std::max<size_t>(body.size() + 4096, 65536));
    send_all(c, c.is_started ? c.request : c.start);
  }
  std::vector<float> latencies;
  latencies.reserve(1 << 22);
  long errors = 0, requests = 0;
  const auto begin = Clock::now();
  const auto measured = begin + std::chrono::duration_cast<Clock::duration>(
                                    std::chrono::duration<double>(warmup));
  const auto end = measured + std::chrono::duration_cast<Clock::duration>(
                                  std::chrono::duration<double>(seconds));
  std::vector<epoll_event> events(count);
  auto now = begin;
  while (now < end) {
    int ready = epoll_wait(poll, events.data(), count, 1000);
    now = Clock::now();
    if (ready <= 0) {
      fprintf(stderr, "no reply within a second\n");
      return 1;
    }
    for (int e = 0; e < ready; ++e) {
      Connection& c = connections[events[e].data.u32];
      if (c.in.size() - c.in_used < 65536) c.in.resize(c.in.size() * 2);
      ssize_t n = recv(c.socket, c.in.data() + c.in_used, c.in.size() - c.in_used, MSG_DONTWAIT);
      if (n < 0 && errno == EAGAIN) continue;
      if (n <= 0) {
        fprintf(stderr, "the server closed a connection\n");
        return 1;
      }
      c.in_used += n;
      bool failed = false;
      if (!whole(framing, c.in, c.in_used, failed)) continue;
      c.in_used = 0;  // one request under way: nothing follows the reply
      if (c.is_started) {
        errors += failed;
        if (c.sent > measured) {
          ++requests;
          latencies.push_back(std::chrono::duration<float, std::micro>(Clock::now() - c.sent).count());
        }
      } else if (failed) {
        fprintf(stderr, "start failed: %.*s\n", int(std::min<size_t>(n, 300)), c.in.data());
        return 1;
      }
      c.is_started = true;
      send_all(c, c.request);
    }
  }
  const double took = std::chrono::duration<double>(now - measured).count();
  std::sort(latencies.begin(), latencies.end());
  auto at = [&](double q) { return latencies.empty() ? 0.f : latencies[size_t(q * (latencies.size() - 1))]; };
  printf("{\"requests\": %ld, \"seconds\": %.3f, \"per_s\": %.1f, \"p50_us\": %.1f, \"p99_us\": %.1f, \"errors\": %ld}\n",
         requests, took, requests / took, at(0.5), at(0.99), errors);
}
