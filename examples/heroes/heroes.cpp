// Two heroes stand together against an ogre: the heroes are bray's, each with a policy of its own; the
// ogre is a script of this game, or with `--asks-ogre 1` bray's, too. Each of them is a session, which
// names itself in its `start`.
//
//     g++ -std=c++17 -O2 -pthread -I ../../clients/cpp/include heroes.cpp -o heroes
//     bray train heroes.yaml
//     bray train ogre.yaml
#include <algorithm>
#include <array>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "bray/client.hpp"
#include "bray/message.hpp"

constexpr int kPlaces = 10, kMostSteps = 40, kOgreHealth = 10;

/// A kind of hero: how far it strikes, how hard, and how much it bears.
struct Hero {
  const char* name;
  int reach, damage, health;
};
constexpr std::array<Hero, 2> kHeroes{{{"hero_sword", 1, 2, 5}, {"hero_bow", 4, 1, 2}}};

struct Body {
  int place = 0, health = 0;
  bool lives() const { return health > 0; }
};

/// The battle, on a line of places; nothing of bray is in it.
class Battle {
 public:
  void begin(std::mt19937& random) {
    for (std::size_t i = 0; i < heroes.size(); ++i) {
      heroes[i] = {static_cast<int>(random() % 3), kHeroes[i].health};
    }
    ogre = {kPlaces - 1 - static_cast<int>(random() % 3), kOgreHealth};
    steps = 0;
  }

  /// A hero goes left (0), stays (1), goes right (2) or strikes (3); returns what that earns.
  float act(std::size_t hero, std::int64_t action) {
    Body& body = heroes[hero];
    if (action != 3) {
      body.place = std::clamp(body.place + static_cast<int>(action) - 1, 0, kPlaces - 1);
      return 0.0f;
    }
    if (!ogre.lives() || std::abs(ogre.place - body.place) > kHeroes[hero].reach) return 0.0f;
    const int dealt = std::min(ogre.health, kHeroes[hero].damage);
    ogre.health -= dealt;
    return 0.1f * static_cast<float>(dealt);
  }

  /// The ogre goes to the nearest hero that lives, and strikes it where it is near enough.
  void strike_back() {
    const Body* nearest = nearest_hero();
    if (nearest == nullptr) return strike_back(1);
    strike_back(distance(*nearest) <= 1 ? 3 : nearest->place > ogre.place ? 2 : 0);
  }

  /// The ogre does as it was told, as a hero does.
  void strike_back(std::int64_t action) {
    ++steps;
    if (!ogre.lives()) return;
    Body* nearest = nearest_hero();
    if (action != 3) {
      ogre.place = std::clamp(ogre.place + static_cast<int>(action) - 1, 0, kPlaces - 1);
    } else if (nearest != nullptr && distance(*nearest) <= 1 && steps % 2 == 0) {
      --nearest->health;  // it is slow
    }
  }

  bool is_won() const { return !ogre.lives(); }
  bool is_late() const { return steps >= kMostSteps; }

  std::array<Body, 2> heroes;
  Body ogre;
  int steps = 0;

 private:
  int distance(const Body& hero) const { return std::abs(hero.place - ogre.place); }
  Body* nearest_hero() {
    Body* nearest = nullptr;
    for (Body& hero : heroes) {
      if (hero.lives() && (nearest == nullptr || distance(hero) < distance(*nearest))) nearest = &hero;
    }
    return nearest;
  }
};

/// A battle after the other in one place; its heroes' requests go out together.
class Lane {
 public:
  Lane(int number, unsigned seed, bool asks_ogre) : number_(number), asks_ogre_(asks_ogre), random_(seed) {}

  void start(std::vector<bray::Request>& requests) {
    battle_.begin(random_);
    ++games_;
    for (std::size_t i = 0; i < kHeroes.size(); ++i) {
      plays_[i] = true, earned_[i] = 0.0f;
      bray::Message body;
      body.text("agent", kHeroes[i].name);
      requests.push_back({bray::Kind::start, session(i), body.encode()});
    }
    if (!asks_ogre_) return;
    bray::Message body;
    body.text("agent", "ogre");
    requests.push_back({bray::Kind::start, session(kHeroes.size()), body.encode()});
  }

  void tick(std::vector<bray::Request>& requests) const {
    for (std::size_t i = 0; i < kHeroes.size(); ++i) {
      if (plays_[i]) requests.push_back({bray::Kind::tick, session(i), told(i).encode()});
    }
    if (asks_ogre_) requests.push_back({bray::Kind::tick, session(kHeroes.size()), told_ogre().encode()});
  }

  /// Take the replies to `tick`, in its order; those who are done are told so in `ends`.
  void take(const bray::Reply*& reply, std::vector<bray::Request>& ends) {
    for (std::size_t i = 0; i < kHeroes.size(); ++i) {
      if (plays_[i]) earned_[i] = battle_.act(i, bray::read_integer((reply++)->body(), "action"));
    }
    if (asks_ogre_) {
      battle_.strike_back(bray::read_integer((reply++)->body(), "action"));
    } else {
      battle_.strike_back();
    }
    for (std::size_t i = 0; i < kHeroes.size(); ++i) {
      if (!plays_[i]) continue;
      if (battle_.is_won()) earned_[i] += 1.0f;
      if (!battle_.heroes[i].lives()) earned_[i] -= 1.0f;
      const bool is_done = battle_.is_won() || !battle_.heroes[i].lives();
      if (!is_done && !battle_.is_late()) continue;
      plays_[i] = false;
      bray::Message message = told(i);
      message.flag("terminated", is_done).flag("truncated", !is_done);
      ends.push_back({bray::Kind::end, session(i), message.encode()});
    }
    if (!asks_ogre_ || !is_over()) return;
    bray::Message message = told_ogre();
    message.flag("terminated", true).flag("truncated", false);
    ends.push_back({bray::Kind::end, session(kHeroes.size()), message.encode()});
  }

  bool is_over() const { return !plays_[0] && !plays_[1]; }

 private:
  /// The name of a hero's session, and of the ogre's, which comes after them.
  std::string session(std::size_t who) const {
    return std::to_string(3 * number_ + static_cast<int>(who)) + "/" + std::to_string(games_);
  }

  /// What a hero sees: itself, its friend, the ogre; and what its last action has earned.
  bray::Message told(std::size_t hero) const {
    bray::Message message;
    const Body &self = battle_.heroes[hero], &other = battle_.heroes[1 - hero], &ogre = battle_.ogre;
    message.array("observation", {place(self), health(self), place(other), health(other), place(ogre),
                                  health(ogre)});
    message.number("reward", earned_[hero]);
    return message;
  }
  /// What the ogre sees: itself, and the heroes; nothing earns it anything.
  bray::Message told_ogre() const {
    bray::Message message;
    const Body &self = battle_.ogre, &sword = battle_.heroes[0], &bow = battle_.heroes[1];
    message.array("observation", {place(self), health(self), place(sword), health(sword), place(bow),
                                  health(bow)});
    message.number("reward", 0.0f);
    return message;
  }
  static float place(const Body& body) { return 2.0f * static_cast<float>(body.place) / (kPlaces - 1) - 1.0f; }
  static float health(const Body& body) { return static_cast<float>(body.health) / 5.0f; }

  int number_, games_ = 0;
  bool asks_ogre_;
  std::mt19937 random_;
  Battle battle_;
  std::array<bool, 2> plays_{};
  std::array<float, 2> earned_{};
};

std::vector<bray::Reply> ask(bray::Client& client, std::vector<bray::Request> requests) {
  std::vector<bray::Reply> replies = client.exchange(std::move(requests));
  for (const bray::Reply& reply : replies) reply.throw_if_failed();
  return replies;
}

/// Play until the run ends this process.
void play(bray::Client& client, std::vector<Lane>& lanes) {
  std::vector<bray::Request> requests;
  for (Lane& lane : lanes) lane.start(requests);
  ask(client, requests);
  for (;;) {
    requests.clear();
    for (const Lane& lane : lanes) lane.tick(requests);
    const std::vector<bray::Reply> replies = ask(client, requests);
    std::vector<bray::Request> ends, starts;
    const bray::Reply* reply = replies.data();
    for (Lane& lane : lanes) {
      lane.take(reply, ends);
      if (lane.is_over()) lane.start(starts);
    }
    ask(client, ends);
    ask(client, starts);
  }
}

int main(int argc, char** argv) {
  int port = 7300, seed = 1, sessions = 32, asks_ogre = 0;
  for (int i = 1; i + 1 < argc; i += 2) {
    const std::string name = argv[i];
    int& option = name == "--port" ? port : name == "--seed" ? seed : name == "--lanes" ? sessions : asks_ogre;
    option = std::atoi(argv[i + 1]);
  }
  bray::Options options;
  options.timeout = std::chrono::minutes(15);  // in training a tick may wait for the next policy
  std::vector<Lane> lanes;
  for (int i = 0; i < sessions / (2 + asks_ogre); ++i) {
    lanes.emplace_back(i, static_cast<unsigned>(seed * 1009 + i), asks_ogre != 0);
  }
  for (;;) {
    try {
      bray::Client client("127.0.0.1", static_cast<std::uint16_t>(port), options);
      play(client, lanes);
    } catch (const bray::ConnectionError& error) {  // not there yet, or gone: begin anew
      std::printf("%s\n", error.what()), std::fflush(stdout);
      std::this_thread::sleep_for(std::chrono::seconds(1));
    } catch (const bray::Error& error) {
      std::fprintf(stderr, "%s\n", error.what());
      return 1;
    }
  }
}
