// A cart with a pole on it: push it left or right so that the pole stays up. The simulation is here,
// the decisions are an actor's, anywhere. Bodies are text:
//
//     start  "cart-pole"                                          any reply
//     tick   "POSITION ANGLE SPEED TURN REWARD", five numbers     "1" push right, "-1" push left
//     end    the same, after the last push                        any reply
//
//     g++ -std=c++17 -pthread -I clients/cpp/include clients/cpp/examples/game.cpp -o game
//     ./game [HOST [PORT [EPISODES]]]
#include <chrono>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <string>

#include "bray/client.hpp"

namespace {

/// Moves by steps of 20 ms.
struct CartPole {
  double position = 0.0;  // m
  double angle = 0.05;    // rad, to the right
  double speed = 0.0;     // m/s
  double turn = 0.0;      // rad/s

  void push(double force) {
    constexpr double kStep = 0.02, kGravity = 9.8, kMass = 1.1, kPole = 0.05, kHalfLength = 0.5;
    const double sine = std::sin(angle), cosine = std::cos(angle);
    const double pull = (force + kPole * turn * turn * sine) / kMass;
    const double bend = (kGravity * sine - cosine * pull) /
                        (kHalfLength * (4.0 / 3.0 - 0.1 * cosine * cosine / kMass));
    position += kStep * speed;
    angle += kStep * turn;
    speed += kStep * (pull - kPole * bend * cosine / kMass);
    turn += kStep * bend;
  }

  bool has_fallen() const { return std::abs(position) > 2.4 || std::abs(angle) > 0.21; }

  std::string observe(double reward) const {
    char text[128];
    std::snprintf(text, sizeof text, "%.5f %.5f %.5f %.5f %g", position, angle, speed, turn, reward);
    return text;
  }
};

/// Play one episode and return how many steps the pole stayed up.
int play(bray::Client& client, const std::string& session, double angle) {
  constexpr int kMaxSteps = 200;
  CartPole cart;
  cart.angle = angle;
  client.start(session, "cart-pole");
  int num_steps = 0;
  double reward = 0.0;  // of the push before
  while (num_steps < kMaxSteps && !cart.has_fallen()) {
    const std::string action = client.tick(session, cart.observe(reward));
    cart.push(std::atof(action.c_str()) > 0 ? 10.0 : -10.0);
    reward = cart.has_fallen() ? 0.0 : 1.0;
    ++num_steps;
  }
  client.end(session, cart.observe(reward));
  return num_steps;
}

}  // namespace

int main(int argc, char** argv) {
  const std::string host = argc > 1 ? argv[1] : "127.0.0.1";
  const auto port = static_cast<std::uint16_t>(argc > 2 ? std::atoi(argv[2]) : 7300);
  const int num_episodes = argc > 3 ? std::atoi(argv[3]) : 5;
  bray::Options options;
  options.timeout = std::chrono::seconds(5);
  try {
    bray::Client client(host, port, options);
    for (int episode = 0; episode < num_episodes; ++episode) {
      const double angle = 0.02 * (episode % 5 - 2);
      const int num_steps = play(client, "cart-" + std::to_string(episode), angle);
      std::printf("episode %d: up for %d steps\n", episode, num_steps);
    }
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
  return 0;
}
