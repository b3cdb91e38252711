"""Real environments that call actors over every way there is."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

from bray_actor import Actor
from bray_actor.atari import make_atari
from bray_actor.gamecores.gamecore import play
from bray_actor.gamecores.pettingzoo import play_aec, play_parallel
from bray_actor.spaces import resolve, to_arrays
from bray_core import codec
from bray_core.errors import ConfigError, ServiceError
from bray_server import ServerThread

os.environ.setdefault("SDL_VIDEODRIVER", "dummy")


class Player(Actor):
    """Answers with random values of an action space; notes which sessions are open."""

    open: set[str]
    starts: list[dict[str, Any]]

    def __init__(self, session: str, space: Any) -> None:
        self.session = session
        self.space = space

    async def start(self, body: bytes) -> bytes:
        self.open.add(self.session)
        self.starts.append(codec.decode(body))
        return b""

    async def tick(self, body: bytes) -> bytes:
        return codec.encode({"action": self.act(codec.decode(body)["observation"])})

    def act(self, observation: Any) -> Any:
        return to_arrays(self.space, self.space.sample())

    async def end(self, body: bytes) -> bytes:
        assert set(codec.decode(body)) >= {"observation", "terminated", "truncated"}
        self.open.remove(self.session)
        return b""


def players(space: Any, kind: type[Player] = Player) -> Callable[[str], Player]:
    if space is not None:
        space.seed(1)
    counted = type("Counted", (kind,), {"open": set(), "starts": []})
    made: Any = lambda session: counted(session, space)  # noqa: E731
    made.kind = counted
    return made  # type: ignore[no-any-return]


class Nested(gymnasium.Env[Any, Any]):
    """Takes and shows everything that has arrays."""

    action_space = spaces.Dict(
        {
            "go": spaces.Tuple([spaces.Discrete(3, start=-1), spaces.MultiBinary(2)]),
            "aim": spaces.Box(-1, 1, (2,), np.float32),
            "use": spaces.MultiDiscrete([2, 3]),
        }
    )
    observation_space = spaces.Tuple([action_space, spaces.Box(0, 255, (4, 4, 3), np.uint8)])

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, Any]:
        super().reset(seed=seed)
        self.left = 6
        return self.observation_space.sample(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, Any]:
        assert self.action_space.contains(action)
        self.left -= 1
        return self.observation_space.sample(), 1.0, False, self.left == 0, {}


@pytest.fixture(scope="module", autouse=True)
def _registered() -> Iterator[None]:
    resolve("ALE/Pong-v5")  # registers
    pong = gymnasium.spec("ALE/Pong-v5")
    gymnasium.register("Nested-v0", Nested)
    gymnasium.register("ShortPong-v0", pong.entry_point, kwargs=pong.kwargs, max_episode_steps=20)
    yield
    del gymnasium.registry["Nested-v0"]
    del gymnasium.registry["ShortPong-v0"]


WAYS = {
    "tcp": {},
    "tcp with delta encoding": {"delta": True},
    "http": {},
    "in process": {},
    "vector, in process": {"vector": True},
    "vector, tcp": {"vector": True},
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("environment", ["Nested-v0", "ShortPong-v0"])
def test_every_way_plays_the_same(environment: str, way: str) -> None:
    make = players(gymnasium.make(environment).action_space)
    if "in process" in way:
        returns = play(environment, make, episodes=3, num_envs=2, **WAYS[way])  # type: ignore[arg-type]
    else:
        server = ServerThread(make, http_port=0)
        address = server.addresses["http" in way]
        returns = play(environment, address, episodes=3, num_envs=2, **WAYS[way])  # type: ignore[arg-type]
        server.close()
    assert len(returns) == 3
    assert returns == [6.0] * 3 or environment == "ShortPong-v0"
    assert make.kind.open == set()  # type: ignore[attr-defined]
    assert len(make.kind.starts) == 3  # type: ignore[attr-defined]


ENVIRONMENTS = [
    "Acrobot-v1",
    "Blackjack-v1",
    "CartPole-v1",
    "CliffWalking-v1",
    "FrozenLake8x8-v1",
    "MountainCar-v0",
    "MountainCarContinuous-v0",
    "Pendulum-v1",
    "Taxi-v4",
]
"""All of Gymnasium's own that need no further package."""


@pytest.mark.parametrize("environment", ENVIRONMENTS)
def test_registered_environments_play_unchanged(environment: str) -> None:
    made = gymnasium.make(environment)
    gymnasium.register("Cut-v0", lambda: gymnasium.wrappers.TimeLimit(made, 30))
    try:
        make = players(made.action_space)
        assert len(play("Cut-v0", make, episodes=2)) == 2
    finally:
        del gymnasium.registry["Cut-v0"]


@pytest.mark.parametrize(
    ("space", "name"),
    [
        (spaces.Text(5), "Text"),
        (spaces.Graph(spaces.Box(0, 1, (2,)), None), "Graph"),
        (spaces.Dict({"x": spaces.Sequence(spaces.Discrete(2))}), "Sequence"),
        (spaces.OneOf([spaces.Discrete(2), spaces.Discrete(3)]), "OneOf"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
@pytest.mark.parametrize("which", ["observation_space", "action_space"])
def test_other_spaces_are_refused_by_name(space: Any, name: str, which: str) -> None:
    if (name, which) == ("Sequence", "observation_space"):
        pytest.skip("sets of an observation are padded: test_sets.py")
    kind = type("Strange", (Nested,), {which: space})
    gymnasium.register("Strange-v0", kind)
    try:
        with pytest.raises(ConfigError, match=f"environment: {which}: space: .*got {name}"):
            play("Strange-v0", players(None), episodes=1)
    finally:
        del gymnasium.registry["Strange-v0"]


def test_what_only_an_address_has_is_refused_in_process() -> None:
    for option in ({"delta": True}, {"token": "secret"}):
        with pytest.raises(ConfigError, match=f"{next(iter(option))}: only with an address"):
            play("cartpole", players(None), episodes=1, **option)  # type: ignore[arg-type]


def test_a_module_that_is_not_there_is_named() -> None:
    with pytest.raises(ConfigError, match="needs the module no_such_games, which cannot be"):
        resolve("no_such_games:Chess-v0")


def test_a_module_of_the_working_directory_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "own_games.py").write_text(
        "import gymnasium\nfrom gymnasium.envs.classic_control import CartPoleEnv\n"
        "gymnasium.register('Own-v0', CartPoleEnv)\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [place for place in sys.path if place not in ("", ".")])
    assert resolve("own_games:Own-v0") == "Own-v0"
    assert sys.path[-1] == str(tmp_path)
    with pytest.raises(ConfigError, match="'own_games:own-v0', did you mean 'own_games:Own-v0'"):
        resolve("own_games:own-v0")
    del gymnasium.registry["Own-v0"], sys.modules["own_games"]


def test_an_action_that_is_none_is_refused() -> None:
    class Wrong(Player):
        def act(self, observation: Any) -> Any:
            return 7

    with pytest.raises(ConfigError, match=r"action: expected one of Discrete\(2\), got 7"):
        play("cartpole", players(None, Wrong), episodes=1)


def test_an_actor_that_fails_in_process_is_an_error_of_the_service() -> None:
    class Failing(Player):
        def act(self, observation: Any) -> Any:
            raise ValueError("no idea")

    with pytest.raises(ServiceError, match="no idea"):
        play("cartpole", players(None, Failing), episodes=1)


class Legal(Player):
    """Takes the first move that is allowed."""

    def act(self, observation: Any) -> Any:
        return int(np.flatnonzero(observation["action_mask"])[0])


OLD_API = pytest.mark.filterwarnings("ignore:The old environment creation API")


@OLD_API
@pytest.mark.parametrize("over_tcp", [False, True])
def test_agents_that_act_in_turn(over_tcp: bool) -> None:
    from pettingzoo.classic import tictactoe_v3

    make = players(None, Legal)
    server = ServerThread(make) if over_tcp else None
    actors: Any = server.addresses[0] if server is not None else make
    games = play_aec(tictactoe_v3.raw_env(), actors, episodes=2, game_offset=5)
    if server is not None:
        server.close()
    # Moves 0 to 6 in turn: the first player holds 0, 2, 4 and 6, and so a diagonal.
    assert games == [{"player_1": 1.0, "player_2": -1.0}] * 2
    assert make.kind.open == set()  # type: ignore[attr-defined]
    assert make.kind.starts == [  # type: ignore[attr-defined]
        {"game": game, "agent": agent} for game in ("5", "6") for agent in ("player_1", "player_2")
    ]


@OLD_API
@pytest.mark.parametrize("kind", ["aec", "parallel"])
def test_agents_that_come_and_go(kind: str) -> None:
    """PettingZoo's own test environment: agents of many types appear and leave all the time."""
    from pettingzoo.test.example_envs import (
        generated_agents_env_v0,
        generated_agents_parallel_v0,
    )

    def counting(kind: Any) -> Any:
        """PettingZoo 1.27 forgets to count the steps that end its environment."""

        class Counting(kind):  # type: ignore[misc]
            def step(self, actions: Any) -> Any:
                self.num_steps += 1
                return super().step(actions)

        return partial(Counting, max_cycles=40)

    env: Any
    if kind == "aec":
        env, driver = generated_agents_env_v0.raw_env(max_cycles=40), play_aec
    else:
        env, driver = counting(generated_agents_parallel_v0.parallel_env)(), play_parallel

    class Zero(Player):
        def act(self, observation: Any) -> Any:
            return 0

    make = players(None, Zero)
    games = driver(env, make, episodes=2, seed=3)
    assert len(games) == 2
    assert len({*games[0]}) > 3, "agents came"
    assert make.kind.open == set(), "each that came went"  # type: ignore[attr-defined]
    assert len(make.kind.starts) == sum(map(len, games))  # type: ignore[attr-defined]


def test_parallel_agents_are_sessions_of_their_game() -> None:
    class Count:
        """Two agents; the second leaves after two steps, the first after four."""

        def __init__(self) -> None:
            self.agents: list[str] = []

        def reset(self, seed: int | None = None) -> tuple[dict[str, Any], dict[str, Any]]:
            self.agents, self.steps = ["one", "two"], 0
            return {agent: np.zeros(2, np.float32) for agent in self.agents}, {}

        def observation_space(self, agent: str) -> Any:
            return spaces.Box(0, 9, (2,))

        def action_space(self, agent: str) -> Any:
            return spaces.Discrete(2)

        def step(self, actions: dict[str, int]) -> tuple[dict[str, Any], ...]:
            self.steps += 1
            playing = list(self.agents)
            done = {a: self.steps == (4 if a == "one" else 2) for a in playing}
            self.agents = [a for a in playing if not done[a]]
            observations = {a: np.zeros(2, np.float32) for a in playing}
            none = dict.fromkeys(playing, False)
            return observations, dict.fromkeys(playing, 1.0), done, none, {}

    sessions: list[str] = []
    make = players(spaces.Discrete(2))

    def noted(session: str) -> Player:
        sessions.append(session)
        return make(session)

    server = ServerThread(noted)
    games = play_parallel(Count(), server.addresses[0], episodes=2)
    server.close()
    assert games == [{"one": 4.0, "two": 2.0}] * 2
    assert sessions == ["0/one", "0/two", "1/one", "1/two"]
    with pytest.raises(ConfigError, match="episodes: expected 1 or more, got 0"):
        play_parallel(Count(), "tcp://127.0.0.1:1", episodes=0)


def test_agents_with_a_space_that_has_no_arrays_are_named() -> None:
    from pettingzoo.test.example_envs import generated_agents_parallel_v0

    env = generated_agents_parallel_v0.parallel_env(max_cycles=4)
    env.action_space = lambda agent: spaces.Text(3)
    with pytest.raises(ConfigError, match=r"environment: action_space of '.*': space: .*got Text"):
        play_parallel(env, players(None), episodes=1)


def test_atari_games_play_preprocessed() -> None:
    seen: list[Any] = []

    class Noting(Player):
        def act(self, observation: Any) -> Any:
            seen.append(observation)
            return super().act(observation)

    make = _until(20, players(spaces.Discrete(6), Noting))
    with pytest.raises(ServiceError, match="enough"):
        play("Pong", make, num_envs=2, seed=4, episodes=2)
    assert {(frame.shape, frame.dtype.name) for frame in seen} == {((4, 84, 84), "uint8")}
    first, _ = make_atari("Pong", 2).reset(seed=4 * 1_000_003)
    np.testing.assert_array_equal(seen[:2], first)
    np.testing.assert_array_equal(seen[2][:3], seen[0][1:])


def _until(ticks: int, make: Callable[[str], Player]) -> Callable[[str], Actor]:
    """Fail in the tick of that number, of all sessions together."""
    left = iter(range(ticks))

    def made(session: str) -> Actor:
        player = make(session)

        class Counted(Actor):
            async def tick(self, body: bytes) -> bytes:
                if next(left, None) is None:
                    raise ValueError("enough")
                return await player.tick(body)

        return Counted()

    return made
