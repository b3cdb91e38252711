// POSIX sockets, as little of them as a client needs. None of it blocks, but for resolving names.
#pragma once

#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

namespace bray::detail {

/// Owns a file descriptor.
class Descriptor {
 public:
  Descriptor() = default;
  explicit Descriptor(int fd) : fd_(fd) {}
  Descriptor(Descriptor&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  Descriptor& operator=(Descriptor&& other) noexcept {
    if (this != &other) {
      reset();
      fd_ = std::exchange(other.fd_, -1);
    }
    return *this;
  }
  ~Descriptor() { reset(); }

  int get() const noexcept { return fd_; }
  bool is_open() const noexcept { return fd_ >= 0; }
  void reset() noexcept {
    if (fd_ >= 0) ::close(std::exchange(fd_, -1));
  }

 private:
  int fd_ = -1;
};

/// The system's text for an error number.
inline std::string error_text(int error) { return std::generic_category().message(error); }

/// Neither inherited by child processes nor ever waited for.
inline bool make_private_and_non_blocking(int fd) {
  return ::fcntl(fd, F_SETFD, FD_CLOEXEC) == 0 && ::fcntl(fd, F_SETFL, O_NONBLOCK) == 0;
}

/// One address of a host.
struct SocketAddress {
  sockaddr_storage storage{};
  socklen_t size = 0;
};

/// The addresses of a host. Sets `problem` where there are none. Blocks while the resolver asks.
inline std::vector<SocketAddress> resolve(const std::string& host, std::uint16_t port,
                                          std::string& problem) {
  addrinfo hints{};
  hints.ai_family = AF_UNSPEC;
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_NUMERICSERV;
  addrinfo* found = nullptr;
  const int status = ::getaddrinfo(host.c_str(), std::to_string(port).c_str(), &hints, &found);
  std::vector<SocketAddress> addresses;
  if (status != 0) {
    problem = ::gai_strerror(status);
    return addresses;
  }
  for (const addrinfo* one = found; one != nullptr; one = one->ai_next) {
    if (one->ai_addrlen > sizeof(sockaddr_storage)) continue;
    SocketAddress address;
    std::memcpy(&address.storage, one->ai_addr, one->ai_addrlen);
    address.size = one->ai_addrlen;
    addresses.push_back(address);
  }
  ::freeaddrinfo(found);
  return addresses;
}

/// A socket that has begun to connect: writable when it has ended. Sets `error` on failure.
inline Descriptor begin_connect(const SocketAddress& address, int& error) {
  Descriptor fd(::socket(address.storage.ss_family, SOCK_STREAM, 0));
  if (!fd.is_open() || !make_private_and_non_blocking(fd.get())) {
    error = errno;
    return Descriptor();
  }
  const int on = 1;  // without TCP_NODELAY small requests wait for the acknowledgement of others
  ::setsockopt(fd.get(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
  ::setsockopt(fd.get(), SOL_SOCKET, SO_KEEPALIVE, &on, sizeof on);
#ifdef SO_NOSIGPIPE
  ::setsockopt(fd.get(), SOL_SOCKET, SO_NOSIGPIPE, &on, sizeof on);
#endif
  const auto* const to = reinterpret_cast<const sockaddr*>(&address.storage);
  // An interrupted connect goes on by itself, just as one in progress.
  if (::connect(fd.get(), to, address.size) == 0 || errno == EINPROGRESS || errno == EINTR) {
    return fd;
  }
  error = errno;
  return Descriptor();
}

/// How a connect has ended: 0 or an error number.
inline int connect_error(int fd) {
  int error = 0;
  socklen_t size = sizeof error;
  return ::getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &size) == 0 ? error : errno;
}

/// Send what the kernel takes, without SIGPIPE. Returns -1 and sets errno on failure.
inline ssize_t send_parts(int fd, iovec* parts, std::size_t num_parts) {
#ifdef MSG_NOSIGNAL
  constexpr int kFlags = MSG_NOSIGNAL;
#else
  constexpr int kFlags = 0;  // SO_NOSIGPIPE is set instead
#endif
  msghdr message{};
  message.msg_iov = parts;
  message.msg_iovlen = static_cast<decltype(message.msg_iovlen)>(num_parts);
  ssize_t sent = -1;
  do {
    sent = ::sendmsg(fd, &message, kFlags);
  } while (sent < 0 && errno == EINTR);
  return sent;
}

/// Receive what is there. Returns 0 at the end, -1 and errno on failure.
inline ssize_t receive(int fd, char* data, std::size_t size) {
  ssize_t received = -1;
  do {
    received = ::recv(fd, data, size, 0);
  } while (received < 0 && errno == EINTR);
  return received;
}

inline bool would_block(int error) { return error == EAGAIN || error == EWOULDBLOCK; }

}  // namespace bray::detail
