// Catch: a ball falls, a paddle moves left, stays or moves right. A few games run side by side in one
// process; all their ticks go out together, and come back together. The guide docs/guides/cpp-simulator.md
// lets a hand-written actor answer, trains policies (examples/catch), and serves one to this program.
//
//     g++ -std=c++17 -O2 -pthread -I clients/cpp/include clients/cpp/examples/catch.cpp -o game
//     ./game --port 7300 [--games N] [--lanes N] [--first-lane N] [--seed N]
//         [--phase training] [--continuous 1]
#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "bray/client.hpp"
#include "bray/message.hpp"

constexpr int kRows = 6, kColumns = 5;

/// The simulation; nothing of bray is in it.
struct Catch {
  int ball = 0, row = 0;
  float paddle = kColumns / 2;
  explicit Catch(std::mt19937& random) : ball(static_cast<int>(random() % kColumns)) {}

  void move(float by) {  // columns, −1 to 1
    paddle = std::min(std::max(paddle + by, 0.0f), kColumns - 1.0f);
    ++row;
  }
  bool is_over() const { return row == kRows - 1; }
  bool is_caught() const { return std::abs(paddle - static_cast<float>(ball)) <= 0.5f; }
  float reward() const { return !is_over() ? 0.0f : is_caught() ? 1.0f : -1.0f; }
};

/// A place where one game after the other is played; each game is a session.
class Lane {
 public:
  Lane(int number, unsigned seed, std::string phase, bool is_continuous)
      : phase_(std::move(phase)),
        is_continuous_(is_continuous),
        number_(number),
        random_(seed),
        game_(random_) {}

  bray::Request start() {
    game_ = Catch(random_);
    session_ = std::to_string(number_) + "/" + std::to_string(++games);
    bray::Message body;
    body.map("spaces", spaces()).map("tags", bray::Message().text("phase", phase_));
    return {bray::Kind::start, session_, body.encode()};
  }
  bray::Request tick() const { return {bray::Kind::tick, session_, told().encode()}; }
  bray::Request end() const {  // truncated would be true where only a time limit ended it
    bray::Message message = told();
    message.flag("terminated", true).flag("truncated", false);
    return {bray::Kind::end, session_, message.encode()};
  }
  void take(const bray::Reply& reply) {
    game_.move(is_continuous_
                   ? bray::read_array<float>(reply.body(), "action").at(0)
                   : static_cast<float>(bray::read_integer(reply.body(), "action")) - 1.0f);
    if (game_.is_over() && game_.is_caught()) ++caught;
  }
  bool is_over() const { return game_.is_over(); }

  int games = 0, caught = 0;

 private:
  /// What is seen and what may be done: a policy that knows checks it, a new one is made for it.
  bray::Message spaces() const {
    bray::Message observation, action, both;
    observation.array("shape", std::vector<std::int64_t>{3});
    if (is_continuous_) {
      action.array("shape", std::vector<std::int64_t>{1}).number("low", -1).number("high", 1);
    } else {
      action.number("discrete", 3);
    }
    return both.map("observation", observation).map("action", action);
  }

  /// What is seen, and the reward of the action before (in a first tick nobody reads it).
  bray::Message told() const {
    bray::Message message;
    message.array("observation", {scaled(static_cast<float>(game_.ball), kColumns),
                                  scaled(static_cast<float>(game_.row), kRows),
                                  scaled(game_.paddle, kColumns)});
    message.number("reward", game_.reward());
    return message;
  }

  static float scaled(float place, int size) {  // −1 to 1
    return 2.0f * place / static_cast<float>(size - 1) - 1.0f;
  }

  std::string phase_;  // "evaluation": nothing of it is trained on
  bool is_continuous_;
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

/// Options of the command line, `--name value`.
struct Options {
  std::map<std::string, std::string> values{
      {"--port", "7300"}, {"--games", "0"},        {"--lanes", "8"},     {"--first-lane", "0"},
      {"--seed", "1"},    {"--phase", "training"}, {"--continuous", "0"}};

  Options(int argc, char** argv) {
    for (int i = 1; i < argc; i += 2) {
      if (values.count(argv[i]) == 0 || i + 1 == argc) {
        std::fprintf(stderr, "%s: no such option, or without a value\n", argv[i]);
        std::exit(2);
      }
      values[argv[i]] = argv[i + 1];
    }
  }
  int number(const std::string& name) const { return std::atoi(values.at(name).c_str()); }
};

int main(int argc, char** argv) {
  const Options set(argc, argv);
  bray::Options options;
  options.timeout = std::chrono::minutes(15);  // in training a tick may wait for the next policy
  std::vector<Lane> lanes;
  for (int i = 0; i < set.number("--lanes"); ++i) {
    const int lane = set.number("--first-lane") + i;
    lanes.emplace_back(lane, static_cast<unsigned>(set.number("--seed") * 1009 + lane),
                       set.values.at("--phase"), set.number("--continuous") != 0);
  }
  for (;;) {
    try {
      bray::Client client("127.0.0.1", static_cast<std::uint16_t>(set.number("--port")), options);
      std::printf("connected\n"), std::fflush(stdout);
      play(client, lanes, set.number("--games"));
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
