"""Templates of the full form, for the tests: all that is written by name."""

from __future__ import annotations

HUNT = """\
models:
  hunter: {spaces: &seen {observation: {units: {shape: [16, 12]}, self: {shape: [8]}},
    action: {discrete: 9}}}
  runner: {spaces: *seen, memory: lstm, memory_size: 64}
trainers:
  hunter: {algorithm: ppo, steps_per_replay: 3840}
  runner: {algorithm: impala}
agents: {hunter: {}, runner: {segment_length: 64}}
sources:
  game:
    kind: gamecores
    command: ./build/hunt --port {port} --seed {seed} --phase {phase}
    count: 4
    lanes: 48
    agents: {"hunter_*": hunter, "runner_*": runner}
goal: {agent: hunter, episode_return: 20, max_frames: 20000000}
"""
"""A simulator with two policies and two algorithms."""

LEAGUE = """\
models:
  main: &net {network: my_game:HeroNet, settings: {width: 128}}
  exploiter: *net
  rival: *net
trainers: {main: &appo {algorithm: appo, learning_rate: 3e-4}, exploiter: *appo, rival: *appo}
agents: {main: {}, exploiter: {}, rival: {}, medium: {play: "my_game:medium_script"}}
sources:
  battle:
    kind: matches
    command: "./moba --port {port} --seed {seed}"
    count: 4
    lanes: 24
    sides: {red: "red_*", blue: "blue_*"}
    opponents:
      rule: league
      roles: {main: main, exploiter: main_exploiter, rival: league_exploiter}
      freeze_every: 2000000
actors: {battle: {num_workers: 2, port: 7300}}
goal: {agent: main, win_rate: 0.95, against: medium, evaluation_episodes: 400}
"""
"""A league over the wire, with exploiters and a script to measure against."""

DRIVER = """\
models: {driver: {hidden: [128, 128]}}
buffers: {expert: {kind: dataset, from: recordings, path: recorded, batch_size: 512}}
trainers:
  driver: {algorithm: rl_imitation, inputs: {demonstrations: expert}, imitation_weight: 0.3}
agents: {driver: {}}
sources:
  road: {kind: environments, environment: "my_road:Lane-v0", kwargs: {traffic: 0.4}, num_envs: 16}
goal: {episode_return: 300, max_frames: 2000000}
"""
"""Imitation and reinforcement at once."""

TAG = """\
trainers: {wolf: {algorithm: ppo, steps_per_replay: 1024}, sheep: {algorithm: ppo}}
sources:
  field:
    kind: agents
    environment: simple_tag_v3
    kwargs: {num_adversaries: 2}
    num_envs: 8
    agents: {"adversary_*": wolf, "agent_*": sheep}
renders: {field: {function: "draw:frame"}}
goal: {agent: wolf, max_frames: 10000}
"""
"""PettingZoo's environment with two policies."""

FOUR = """\
algorithm: ppo
source:
  kind: matches
  environment: connect_four_v3
  num_envs: 8
  opponents: {rule: pfsp, latest_share: 0.2}
goal: {win_rate: 0.9, against: random}
"""
"""Self-play in the short form, whose source has a kind."""

MIXED = """\
buffers:
  played: {capacity: 20000}
  expert: {kind: dataset, from: minari, path: "mujoco/hopper/expert-v0"}
  both: {kind: mixture, of: {played: 0.75, expert: 0.25}}
trainers: {hopper: {algorithm: sac, buffer: both}}
agents: {hopper: {buffer: played}}
sources: {gym: {environment: Hopper-v5, num_envs: 4}}
"""
"""A replay and a data set, mixed."""

ALL = {
    "hunt": HUNT,
    "league": LEAGUE,
    "driver": DRIVER,
    "tag": TAG,
    "four": FOUR,
    "mixed": MIXED,
}
