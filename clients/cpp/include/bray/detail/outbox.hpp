// Frames that are not written yet, in order.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <string>
#include <utility>

#include "bray/detail/socket.hpp"

namespace bray::detail {

/// See the top of the file. A frame is a request, which outlives its connection as long as no byte
/// of it was written, or belongs to the connection (hello, a probing ping) and goes with it.
class Outbox {
 public:
  /// Frames of one system call.
  static constexpr std::size_t kMaxParts = 64;

  bool empty() const noexcept { return frames_.empty(); }

  /// Whether the first frame is this one.
  bool begins_with(std::uint32_t id) const { return !empty() && frames_.front().id == id; }

  void push_request(std::uint32_t id, std::string bytes) {
    frames_.push_back({id, false, std::move(bytes)});
  }

  void push_probe(std::uint32_t id, std::string bytes) {
    frames_.push_back({id, true, std::move(bytes)});
  }

  /// The first frame of a connection; what waited for the connection stays behind it.
  void push_greeting(std::uint32_t id, std::string bytes) {
    frames_.push_front({id, true, std::move(bytes)});
  }

  /// Remove a request of which nothing was written.
  void remove(std::uint32_t id) {
    const auto is_it = [id](const Frame& frame) { return frame.id == id; };
    frames_.erase(std::find_if(frames_.begin(), frames_.end(), is_it));
  }

  /// The connection is gone: remove what belongs to it, and a request that was begun.
  void reset_connection() {
    if (num_written_ > 0) frames_.pop_front();
    num_written_ = 0;
    const auto goes = [](const Frame& frame) { return frame.is_of_connection; };
    frames_.erase(std::remove_if(frames_.begin(), frames_.end(), goes), frames_.end());
  }

  void clear() noexcept {
    frames_.clear();
    num_written_ = 0;
  }

  /// Write what the kernel takes of the first `most` frames, and call `begun` with the id of each
  /// frame of which a byte was written. Returns false and sets errno on failure.
  template <typename Begun>
  bool send(int fd, std::size_t most, const Begun& begun) {
    std::array<iovec, kMaxParts> parts;
    std::size_t count = 0;
    std::size_t skip = num_written_;
    for (Frame& frame : frames_) {
      if (count == std::min(most, kMaxParts)) break;
      parts[count++] = {frame.bytes.data() + skip, frame.bytes.size() - skip};
      skip = 0;
    }
    const ssize_t sent = send_parts(fd, parts.data(), count);
    if (sent < 0) return false;
    note_written(static_cast<std::size_t>(sent), begun);
    return true;
  }

 private:
  struct Frame {
    std::uint32_t id = 0;
    bool is_of_connection = false;
    std::string bytes;
  };

  template <typename Begun>
  void note_written(std::size_t sent, const Begun& begun) {
    while (sent > 0) {
      const Frame& frame = frames_.front();
      begun(frame.id);
      const std::size_t left = frame.bytes.size() - num_written_;
      if (sent < left) {
        num_written_ += sent;
        return;
      }
      sent -= left;
      num_written_ = 0;
      frames_.pop_front();
    }
  }

  std::deque<Frame> frames_;
  std::size_t num_written_ = 0;  // of the first frame
};

}  // namespace bray::detail
