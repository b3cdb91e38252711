// Catch: a ball falls, a paddle moves left, stays or moves right. Eight games run side by side in one
// process; all their ticks go out together, and come back together. The guide docs/guides/cpp-simulator.md
// lets a hand-written actor answer, trains a policy, and serves it to this program.
//
//     g++ -std=c++17 -O2 -pthread -I clients/cpp/include clients/cpp/examples/catch.cpp -o game
//     ./game PORT [GAMES]
#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "bray/client.hpp"
#include "bray/message.hpp"

constexpr int kRows = 6, kColumns = 5;

/// The simulation; nothing of bray is in it.
struct Catch {
  int ball = 0, row = 0, paddle = kColumns / 2;
  explicit Catch(std::mt19937& random) : ball(static_cast<int>(random() % kColumns)) {}

  void move(std::int64_t action) {  // 0 left, 1 stay, 2 right
    paddle = std::min(std::max(paddle + static_cast<int>(action) - 1, 0), kColumns - 1);
    ++row;
  }
  bool is_over() const { return row == kRows - 1; }
  float reward() const { return !is_over() ? 0.0f : paddle == ball ? 1.0f : -1.0f; }
};

/// A place where one game after the other is played; each game is a session.
class Lane {
 public:
  Lane(int number, unsigned seed) : number_(number), random_(seed), game_(random_) {}

  bray::Request start() {
    game_ = Catch(random_);
    session_ = std::to_string(number_) + "/" + std::to_string(++games);
    return {bray::Kind::start, session_, ""};
  }
  bray::Request tick() const { return {bray::Kind::tick, session_, told().encode()}; }
  bray::Request end() const {  // truncated would be true where only a time limit ended it
    bray::Message message = told();
    message.flag("terminated", true).flag("truncated", false);
    return {bray::Kind::end, session_, message.encode()};
  }
  void take(const bray::Reply& reply) {
    game_.move(bray::read_integer(reply.body(), "action"));
    if (game_.is_over() && game_.reward() > 0) ++caught;
  }
  bool is_over() const { return game_.is_over(); }

  int games = 0, caught = 0;

 private:
  /// What is seen, and the reward of the action before (in a first tick nobody reads it).
  bray::Message told() const {
    bray::Message message;
    message.array("observation", {scaled(game_.ball, kColumns), scaled(game_.row, kRows),
                                  scaled(game_.paddle, kColumns)});
    message.number("reward", game_.reward());
    return message;
  }

  static float scaled(int place, int size) {  // −1 to 1
    return 2.0f * static_cast<float>(place) / static_cast<float>(size - 1) - 1.0f;
  }

  int number_;
  std::mt19937 random_;
  Catch game_;
  std::string session_;
};

/// Send requests together; the first error among the replies is thrown.
std::vector<bray::Reply> ask(bray::Client& client, std::vector<bray::Request> requests) {
  std::vector<bray::Reply> replies = client.exchange(std::move(requests));
  for (const bray::Reply& reply : replies) reply.throw_if_failed();
  return replies;
}

/// Play until `num_games` have ended; 0 plays on and on.
void play(bray::Client& client, std::vector<Lane>& lanes, int num_games) {
  std::vector<bray::Request> requests;
  for (Lane& lane : lanes) requests.push_back(lane.start());
  ask(client, requests);
  for (int ended = 0; num_games == 0 || ended < num_games;) {
    requests.clear();
    for (Lane& lane : lanes) requests.push_back(lane.tick());
    const std::vector<bray::Reply> replies = ask(client, requests);
    std::vector<bray::Request> ends, starts;
    for (std::size_t i = 0; i < lanes.size(); ++i) {
      lanes[i].take(replies[i]);
      if (!lanes[i].is_over()) continue;
      ends.push_back(lanes[i].end());
      starts.push_back(lanes[i].start());
      ++ended;
    }
    ask(client, ends);
    ask(client, starts);
  }
}

int main(int argc, char** argv) {  // game PORT [GAMES]
  const auto port = static_cast<std::uint16_t>(argc > 1 ? std::atoi(argv[1]) : 7300);
  const int num_games = argc > 2 ? std::atoi(argv[2]) : 0;
  bray::Options options;
  options.timeout = std::chrono::minutes(15);  // in training a tick may wait for the next policy
  std::vector<Lane> lanes;
  for (int number = 0; number < 8; ++number) lanes.emplace_back(number, 1 + number);
  for (;;) {
    try {
      bray::Client client("127.0.0.1", port, options);
      std::printf("connected\n"), std::fflush(stdout);
      play(client, lanes, num_games);
      break;
    } catch (const bray::ConnectionError& error) {  // not there yet, or gone: begin anew
      std::printf("%s\n", error.what()), std::fflush(stdout);
      std::this_thread::sleep_for(std::chrono::seconds(1));
    } catch (const bray::Error& error) {
      std::fprintf(stderr, "%s\n", error.what());
      return 1;
    }
  }
  int games = 0, caught = 0;
  for (const Lane& lane : lanes) games += lane.games - 1, caught += lane.caught;
  std::printf("caught %d of %d\n", caught, games);
}
