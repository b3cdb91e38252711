"""Atari games in the runner beside the same games played by hand on the bare emulator."""

from __future__ import annotations

import sys
from collections import defaultdict
from typing import Any

import ale_py
import gymnasium
import numpy as np
import pytest
from ale_py.vector_env import AtariVectorEnv
from gymnasium.vector import AutoresetMode

from bray_actor import Runner, segment_spec
from bray_actor.atari import AtariRewardTransform, is_atari, make_atari
from bray_actor.segment import unstacked
from bray_actor.spaces import resolve, spec_of
from bray_core.errors import ConfigError, MissingExtraError
from bray_core.layout import Layout, Packed
from bray_core.nested import ArraySpec
from bray_core.protocols import Answer

T = 16
NUMBER = ArraySpec(np.dtype(np.int64), ())


class Wander:
    """A policy that is sure of an action that follows from the pixels; names the rows."""

    version = 0

    def __init__(self, num_actions: int) -> None:
        self.num_actions = num_actions

    async def infer(self, observation: Any, batch: bool = False) -> Answer:
        n = len(observation)
        sums = observation.reshape(n, -1).sum(1, dtype=np.int64)
        logits = np.full((n, self.num_actions), -1e4, np.float32)
        logits[np.arange(n), sums * 2654435761 // 65536 % self.num_actions] = 0
        return Answer({"logits": logits, "value": np.zeros(n, np.float32), "row": np.arange(n)}, 0)


class Kept:
    """A buffer that keeps all segments, by the row of their game."""

    def __init__(self, environment: Any, *, stack: bool) -> None:
        spec = segment_spec(
            spec_of(environment.single_observation_space),
            NUMBER,
            T,
            {"row": NUMBER},
            stack=stack,
        )
        self.layout = Layout(spec)
        self.games: dict[int, list[Any]] = defaultdict(list)

    def push(self, *segments: Packed, wait: bool = False, timeout_s: float | None = None) -> int:
        for segment in segments:
            for block in np.array(segment.block).reshape(-1, self.layout.nbytes):
                tree = self.layout.views(block)
                self.games[int(tree["row"][0])].append(tree)
        return len(segments)


class Noted(AtariRewardTransform):
    """Also notes with how many frames each game begins."""

    def __init__(self) -> None:
        super().__init__()
        self.idle: dict[int, list[int]] = defaultdict(list)

    def _note(self, rows: Any, info: Any) -> None:
        for row in rows:
            self.idle[int(row)].append(int(info["episode_frame_number"][row]))

    def begin(self, info: Any) -> None:
        super().begin(info)
        self._note(range(len(info["lives"])), info)

    def __call__(self, reward: Any, ended: Any, info: Any) -> Any:
        self._note(np.nonzero(ended)[0], info)
        return super().__call__(reward, ended, info)


async def recorded(
    environment: Any,
    steps: int,
    *,
    stack: bool = False,
    cuts: int = 1,
    signal: AtariRewardTransform | None = None,
) -> tuple[Kept, list[float]]:
    """Let a runner take `cuts` times `steps` steps; return its segments and its returns."""
    buffer: Any = Kept(environment, stack=stack)
    model: Any = Wander(int(environment.single_action_space.n))
    runner = Runner(
        environment, model, buffer, seed=5, reward_transform=signal or AtariRewardTransform()
    )
    for _ in range(cuts):
        assert await runner.run(steps) == steps * environment.num_envs
        runner.cut()
    runner.close()
    return buffer, runner.take_returns()


def area(size: int) -> Any:
    """Weights `[84, size]` by which a row of pixels becomes 84: each the mean of what it covers."""
    edges = np.linspace(0, size, 85)
    low, high = edges[:-1, None], edges[1:, None]
    pixel = np.arange(size)
    covered = np.minimum(high, pixel + 1) - np.maximum(low, pixel)
    return np.clip(covered, 0, None) / (size / 84)


TALL, WIDE = area(210), area(160)


class ByHand:
    """One game on the bare emulator, preprocessed as the papers say, in numpy."""

    def __init__(self, game: str) -> None:
        ale_py.ALEInterface.setLoggerMode(ale_py.LoggerMode.Error)
        self.ale = ale_py.ALEInterface()
        self.ale.setFloat("repeat_action_probability", 0.0)
        self.ale.loadROM(ale_py.roms.get_rom_path(game))
        self.actions = self.ale.getMinimalActionSet()

    def _screen(self) -> Any:
        return self.ale.getScreenGrayscale().astype(np.float64)

    def begin(self, num_frames: int) -> None:
        assert num_frames <= 31
        self.ale.reset_game()
        if ale_py.Action.FIRE in self.actions:
            self.ale.act(ale_py.Action.FIRE)
        while self.ale.getEpisodeFrameNumber() < num_frames:
            self.ale.act(ale_py.Action.NOOP)
        blank = np.zeros((84, 84))
        self.frames = [blank, blank, blank, self._small(self._screen())]

    def _small(self, screen: Any) -> Any:
        return np.rint(TALL @ screen @ WIDE.T)

    def step(self, action: int) -> float:
        reward, screens = 0.0, []
        for _ in range(4):
            reward += self.ale.act(self.actions[action])
            screens.append(self._screen())
            if self.ale.game_over():
                break
        newest = np.maximum.reduce(screens[-2:])
        self.frames = [*self.frames[1:], self._small(newest)]
        return reward

    def stacked(self) -> Any:
        return np.stack(self.frames)


@pytest.mark.parametrize(("game", "steps"), [("Breakout", 200), ("Asterix", 330)])
async def test_segments_are_those_of_the_bare_emulator(game: str, steps: int) -> None:
    """Pixels, clipped rewards, lost lives as ends, and scores of whole games that are not."""
    signal = Noted()
    buffer, returns = await recorded(make_atari(game, 2, num_threads=2), steps, signal=signal)
    scores, ends, rewards = [], 0, set()
    for row, segments in buffer.games.items():
        idle = iter(signal.idle[row])
        hand = ByHand(gymnasium.spec(f"ALE/{game}-v5").kwargs["game"])
        score, begins = 0.0, True
        for tree in segments:
            length = int(tree["length"])
            if begins:
                hand.begin(next(idle))
                score, begins = 0.0, False
            for t in range(length):
                lives = hand.ale.lives()
                assert np.abs(hand.stacked() - tree["observation"][t]).max() <= 1
                reward = hand.step(int(tree["action"][t]))
                assert tree["reward"][t] == np.sign(reward)
                over, lost = hand.ale.game_over(), hand.ale.lives() < lives
                assert tree["terminated"][t] == (over or lost)
                score += reward
                rewards.add(reward)
                ends += lost and not over
            assert not tree["truncated"].any()
            if tree["terminated"][length - 1]:
                assert not tree["final_observation"].any()
            else:
                assert np.abs(hand.stacked() - tree["final_observation"]).max() <= 1
            if over:
                assert tree["episode_return"] == score
                scores.append(score)
                begins = True
            else:
                assert np.isnan(tree["episode_return"])
                assert tree["episode_length"] == 0
    assert sorted(scores) == sorted(returns)
    assert len(scores) >= 1
    assert ends >= 3, "lives were lost in games that went on"
    assert game == "Breakout" or max(rewards) > 1, "some reward was clipped"


@pytest.mark.parametrize("game", ["Pong", "Breakout"])
async def test_frames_stored_once_are_the_observations(game: str) -> None:
    whole, returns = await recorded(make_atari(game, 2), 75, cuts=3)
    once, same_returns = await recorded(make_atari(game, 2), 75, cuts=3, stack=True)
    assert returns == same_returns
    assert once.layout.nbytes < 0.4 * whole.layout.nbytes
    terminated = 0
    for row, wanted in whole.games.items():
        trees = once.games[row]
        assert len(trees) == len(wanted) > 225 // T
        lengths = np.array([tree["length"] for tree in trees])
        observation, final = unstacked(np.stack([tree["frames"] for tree in trees]), lengths, T)
        for i, (tree, other) in enumerate(zip(wanted, trees, strict=True)):
            length = int(tree["length"])
            np.testing.assert_array_equal(observation[i, :length], tree["observation"][:length])
            if tree["terminated"][length - 1]:
                terminated += 1
            else:
                np.testing.assert_array_equal(final[i], tree["final_observation"])
            for name in set(tree) & set(other):
                np.testing.assert_array_equal(tree[name], other[name], name)
    assert terminated > 0 or game == "Pong"


@pytest.mark.parametrize("stack", [False, True])
async def test_a_game_cut_off_shows_its_own_last_frames(stack: bool) -> None:
    """Not the first ones of the next game, which begins within the same step."""

    signal = Noted()
    environment = AtariVectorEnv(
        "pong", 2, max_num_frames_per_episode=140, autoreset_mode=AutoresetMode.SAME_STEP
    )
    limited, returns = await recorded(environment, 40, stack=stack, signal=signal)
    assert len(returns) == 2
    for row, trees in limited.games.items():
        hand = ByHand("pong")
        hand.begin(signal.idle[row][0])
        for tree in trees:
            length = int(tree["length"])
            for action in tree["action"][:length]:
                hand.step(int(action))
            if tree["truncated"].any():
                break
        assert (tree["truncated"][length - 1], tree["terminated"].any()) == (True, False)
        assert not np.isnan(tree["episode_return"])
        final = tree.get("final_observation")
        if stack:
            final = unstacked(tree["frames"][None], tree["length"][None], T)[1][0]
        # The newest frame is of the moment of the cut, within a step: of the others each is known,
        # and the next game's would be blank.
        assert np.abs(hand.stacked() - final)[:3].max() <= 1
        assert np.abs(hand.stacked() - final)[3].mean() < 1


def test_games_come_back_in_their_order() -> None:
    """Each row is the game of its own seed, whichever thread is done first."""
    together = make_atari("Breakout", 4, num_threads=3)
    apart = [make_atari("Breakout", 1) for _ in range(4)]
    seen, info = together.reset(seed=11)
    first = [env.reset(seed=11 + i)[0][0] for i, env in enumerate(apart)]
    np.testing.assert_array_equal(seen, first)
    assert info["lives"].tolist() == [5] * 4
    random = np.random.default_rng(0)
    for _ in range(40):
        actions = random.integers(0, 4, 4)
        together.send(actions)
        seen, reward, terminated, _, info = together.recv()
        assert info["env_id"].tolist() == list(range(4))
        for i, env in enumerate(apart):
            one = env.step(actions[i : i + 1])
            np.testing.assert_array_equal(one[0][0], seen[i])
            assert (one[1][0], one[2][0]) == (reward[i], terminated[i])


def test_names_of_games() -> None:
    assert resolve("Pong") == resolve("ALE/Pong-v5") == "ALE/Pong-v5"
    assert is_atari("SpaceInvaders")
    assert not is_atari("cartpole")
    with pytest.raises(ConfigError, match="environment: unknown 'Pongg'"):
        resolve("Pongg")
    with pytest.raises(ConfigError, match="environment: unknown 'ALE/Pong-v9', did you mean"):
        resolve("ALE/Pong-v9")


def test_what_is_no_game_is_refused() -> None:
    with pytest.raises(ConfigError, match="such as ALE/Pong-v5, got 'CartPole-v1'"):
        make_atari("CartPole-v1", 2)
    with pytest.raises(ConfigError, match="num_envs: expected 1 or more, got 0"):
        make_atari("Pong", 0)
    with pytest.raises(ConfigError, match="num_threads: expected 1 or more, got -1"):
        make_atari("Pong", 2, num_threads=-1)


def test_what_is_missing_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    resolve("Pong")  # registers
    monkeypatch.delitem(gymnasium.registry, "ALE/Pong-v5")
    monkeypatch.setitem(sys.modules, "ale_py", None)
    for use in (lambda: make_atari("Pong", 1), lambda: resolve("ALE/Pong-v5")):
        with pytest.raises(MissingExtraError, match=r"Atari games needs.*bray-actor\[atari\]"):
            use()
