"""Environments made from one description: classes of yours, wrappers, masks, images, errors."""

from __future__ import annotations

import json
import os
import pickle
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NoReturn

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

from bray_actor.environments.error_limit import ERROR, MAX_ERRORS
from bray_actor.environments.images import ImagePreprocessing
from bray_actor.environments.outcomes import check_observation
from bray_actor.environments.recovering import RecoveringEnvironment
from bray_actor.environments.spec import EnvironmentSpec
from bray_actor.gamecores.gamecore import play
from bray_actor.spaces import resolve
from bray_core import metrics
from bray_core.errors import BrayError, ConfigError, SpecError
from bray_server import ServerThread

GAMES = """
import os, signal
import gymnasium, numpy as np
from gymnasium import spaces

class Push(gymnasium.Env):
    observation_space = spaces.Box(-1.0, 1.0, (2,), np.float32)
    action_space = spaces.Discrete(2)

    def __init__(self, length=5, fails_at=(), fails_in_reset=False):
        self.length, self.fails_at, self.steps = length, fails_at, 0
        self.fails_in_reset = fails_in_reset

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        if self.fails_in_reset:
            raise RuntimeError("no start")
        self.steps = 0
        return np.zeros(2, np.float32), {}

    def step(self, action):
        self.steps += 1
        if self.steps in self.fails_at:
            raise RuntimeError("boom\\nin the middle")
        return np.full(2, self.steps / 10, np.float32), 1.0, self.steps >= self.length, False, {}

class Tenfold(gymnasium.RewardWrapper):
    def reward(self, reward):
        return 10 * reward

class Picture(gymnasium.Env):
    observation_space = spaces.Box(0, 255, (10, 12, 3), np.uint8)
    action_space = spaces.MultiDiscrete([2, 3])

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.steps = 0
        return self._seen(), {"action_mask": (np.array([1, 0]), np.array([0, 1, 1]))}

    def step(self, action):
        self.steps += 1
        return self._seen(), 1.0, self.steps >= 9, False, {}

    def _seen(self):
        return np.full((10, 12, 3), self.steps * 10, np.uint8)

class Reused(gymnasium.Env):
    action_space = spaces.Discrete(2)

    def __init__(self, parts=False, fails_at=99):
        self.fails_at = fails_at
        picture = spaces.Box(0, 255, (6, 6), np.uint8)
        self.parts = parts
        self.observation_space = spaces.Dict(of=picture) if parts else picture
        self.seen = np.zeros((6, 6), np.uint8)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.seen[...] = 0
        return self._shown(), {}

    def step(self, action):
        self.seen += 1
        if self.seen[0, 0] == self.fails_at:
            raise ValueError("boom")
        return self._shown(), 1.0, False, bool(self.seen[0, 0] >= 3), {}

    def _shown(self):
        return {"of": self.seen} if self.parts else self.seen

class Levers(gymnasium.Env):
    observation_space = spaces.Box(-1.0, 1.0, (2,), np.float32)
    action_space = spaces.Dict(
        {"pull": spaces.MultiBinary(2), "go": spaces.Discrete(3), "by": spaces.Box(0, 1)}
    )

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        mask = {"pull": np.array([[1, 0], [1, 1]]), "go": np.array([0, 1, 1])}
        return np.zeros(2, np.float32), {"action_mask": mask}

class Place(Push):
    observation_space = spaces.Discrete(3, start=-1)

    def __init__(self, begins=0, goes=0):
        super().__init__()
        self.begins, self.goes = begins, goes

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return self.begins, {}

    def step(self, action):
        return self.goes, *super().step(action)[1:]

class LateMask(Push):
    def step(self, action):
        return *super().step(action)[:4], {"action_mask": np.array([0.0, 1.0])}

class HalfMask(Push):
    def reset(self, *, seed=None, options=None):
        return super().reset(seed=seed)[0], {"action_mask": np.array([0.5, 0.5])}

class Stuck(Push):
    def close(self):
        raise RuntimeError("the window is gone")

class Needs(Push):
    def __init__(self, size):
        super().__init__()

class Broken(Push):
    def __init__(self):
        raise OSError("libgame.so: no such file")

class Old(Push):
    def reset(self):
        return np.zeros(2, np.float32)

class Loud(Push):
    def reset(self, *, seed=None, options=None):
        print("welcome", flush=True)
        os.write(1, b"from C++\\n")
        return super().reset(seed=seed)

class Leaving(Push):
    def step(self, action):
        raise SystemExit(3)

class Ended(Push):
    def step(self, action):
        os.kill(os.getpid(), signal.SIGTERM)
        while True:
            pass

class Many(gymnasium.vector.VectorEnv):
    pass

if "Many-v0" not in gymnasium.registry:
    gymnasium.register("Many-v0", vector_entry_point=Many)

class Wrong(Push):
    def __init__(self, of):
        super().__init__()
        self.of = of

    def reset(self, *, seed=None, options=None):
        observation, info = super().reset(seed=seed)
        return {
            "reset": lambda: observation,
            "info": lambda: (observation, None),
            "shape": lambda: (np.zeros(3), info),
            "nan": lambda: (np.full(2, np.nan), info),
        }.get(self.of, lambda: (observation, info))()

    def step(self, action):
        observation, reward, *rest = super().step(action)
        return {
            "old": lambda: (observation, reward, False, {}),
            "reward": lambda: (observation, np.ones(1), *rest),
            "no reward": lambda: (observation, None, *rest),
            "paid in words": lambda: (observation, "1", *rest),
            "endless": lambda: (observation, float("inf"), *rest),
            "no info": lambda: (observation, reward, *rest[:2], None),
            "no end": lambda: (observation, reward, None, *rest[1:]),
            "a word": lambda: (observation, reward, "False", *rest[1:]),
            "ends": lambda: (observation, reward, rest[0], np.zeros(1, bool), rest[2]),
            "number": lambda: (observation, reward, np.int64(1), 0, rest[2]),
            "grown": lambda: (np.zeros((2, 2)), reward, *rest),
            "later nan": lambda: (np.full(2, np.nan), reward, *rest),
        }[self.of]()

def make(**kwargs):
    return Push(**kwargs)

def nothing():
    return 3
"""


@pytest.fixture
def games(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The name of a module of environments, in the working directory."""
    name = f"games_{tmp_path.name.replace('-', '_')}"
    (tmp_path / f"{name}.py").write_text(GAMES)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    yield name
    sys.modules.pop(name, None)


def errors() -> float:
    """Return how many errors of environments were counted since the last call."""
    found = [one for one in metrics.drain() if one.name == "actor/environment_errors"]
    return sum(one.total for one in found)


def test_a_class_that_is_not_registered_a_file_and_a_function(games: str) -> None:
    for name in (f"{games}:Push", f"{games}.py:Push", f"{games}:make"):
        spec = EnvironmentSpec(environment=name, kwargs={"length": 2})
        assert resolve(name) == name
        assert pickle.loads(pickle.dumps(spec)) == spec
        assert EnvironmentSpec.from_json(spec.to_json()) == spec
        env = spec.make()
        env.reset(seed=1)
        assert not env.step(0)[2]
        assert env.step(0)[2]
    assert str(EnvironmentSpec(environment=f"{games}.py:Push").located()) == f"{games}.py:Push"
    assert EnvironmentSpec.of("CartPole-v1").to_json() == '{"environment": "CartPole-v1"}'


def test_what_cannot_be_made_is_told_in_words(games: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "envpool", None)
    for settings, words in (
        ({"environment": f"{games}:nothing"}, r"expected a gymnasium.Env, got int"),
        ({"environment": f"{games}:Pusch"}, r"environment: unknown"),
        ({"environment": "absent.py:Push"}, r"needs the file absent.py, which cannot be"),
        ({"environment": f"{games}:Push", "kwargs": {"size": 1}}, r"kwargs: .* does not take"),
        ({"environment": f"{games}:Many"}, r"got Many: make single ones of it, or let a script"),
        ({"environment": f"{games}:Many-v0"}, r"Many-v0 is a vector environment alone: make sin"),
        ({"environment": f"{games}:Needs"}, r"kwargs: .*:Needs needs more: .*'size': write `kwar"),
        (
            {"environment": f"{games}:Broken"},
            r":Broken cannot be made: OSError: libgame.* \("
            rf"{games}.py, line \d+, in __init__\)",
        ),
        (
            {"environment": "Pendulum-v1", "wrappers": ("gymnasium.wrappers:RescaleAction",)},
            r"wrappers: .*:RescaleAction: called with .* TypeError: .*: where it takes arg",
        ),
        ({"environment": "CartPole-v1", "wrappers": (f"{games}:No",)}, r"wrappers: expected"),
        ({"environment": "CartPole-v1", "wrappers": (f"{games}:len",)}, r"wrappers: expected"),
        ({"environment": "CartPole-v1", "resize": 84}, r"expected an observation that is one im"),
        ({"environment": "CartPole-v1", "stepping": "envpool"}, r"envpool is not installed"),
        ({"environment": "ALE/Pong-v5", "grey": True}, r"grey: .*Atari games step many"),
    ):
        with pytest.raises(ConfigError, match=words):
            EnvironmentSpec(**settings).make_vector(1)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="wrappers: expected module:Class"):
        EnvironmentSpec(environment="CartPole-v1", wrappers=("Tenfold",))
    with pytest.raises(ConfigError, match="kwargs: expected numbers, words"):
        EnvironmentSpec(environment="CartPole-v1", kwargs={"at": Path()}).to_json()


def test_wrappers_and_arguments_act_in_gamecores(games: str) -> None:
    spec = EnvironmentSpec(
        environment=f"{games}:Push", kwargs={"length": 3}, wrappers=(f"{games}:Tenfold",)
    )
    assert play(spec, Zero, episodes=3, num_envs=2) == [30.0] * 3


class Zero:
    """Always does the first action."""

    def __init__(self, session: str) -> None: ...

    async def start(self, body: bytes) -> bytes:
        return b""

    async def tick(self, body: bytes) -> bytes:
        from bray_core import codec

        return codec.encode({"action": np.int64(0)})

    async def end(self, body: bytes) -> bytes:
        return b""

    async def lost(self) -> None: ...


def test_masks_of_the_info_become_a_part_of_the_observation(games: str) -> None:
    env = EnvironmentSpec(environment="Taxi-v4").make()
    assert set(env.observation_space) == {"observation", "action_mask"}
    observation, info = env.reset(seed=3)
    np.testing.assert_array_equal(observation["action_mask"], info["action_mask"])
    observation, *_, info = env.step(int(np.argmax(info["action_mask"])))
    np.testing.assert_array_equal(observation["action_mask"], info["action_mask"])
    plain = EnvironmentSpec(environment="Taxi-v4", action_mask=False).make()
    assert isinstance(plain.observation_space, spaces.Discrete)
    cartpole = EnvironmentSpec(environment="CartPole-v1").make()
    assert isinstance(cartpole.observation_space, spaces.Box)
    several = EnvironmentSpec(environment=f"{games}:Picture").make()
    observation, _ = several.reset(seed=1)
    assert observation["action_mask"].tolist() == [1, 0, 0, 1, 1]
    assert several.step([0, 1])[0]["action_mask"].tolist() == [1] * 5  # none was told
    nest = EnvironmentSpec(environment=f"{games}:Levers").make()
    assert nest.reset(seed=1)[0]["action_mask"].tolist() == [0, 1, 1, 1, 0, 1, 1]


def test_a_mask_that_is_first_told_in_a_step_is_refused(games: str) -> None:
    env = EnvironmentSpec(environment=f"{games}:LateMask").make()
    env.reset(seed=1)
    assert "expected no action_mask, as the first reset told none" in env.step(0)[4][ERROR]
    plain = EnvironmentSpec(environment=f"{games}:LateMask", action_mask=False).make()
    plain.reset(seed=1)
    assert plain.step(0)[4]["action_mask"].tolist() == [0, 1]


def test_a_mask_of_fractions_is_refused(games: str) -> None:
    env = EnvironmentSpec(environment=f"{games}:HalfMask").make()
    with pytest.raises(BrayError, match=r"action_mask: expected 1 for each .*, got 0.5"):
        env.reset(seed=1)


def test_images_are_resized_grey_and_stacked(games: str) -> None:
    spec = EnvironmentSpec(
        environment=f"{games}:Picture",
        action_mask=False,
        resize=4,
        grey=True,
        frame_stack=3,
        frame_skip=2,
    )
    env = spec.make()
    assert env.observation_space == spaces.Box(0, 255, (3, 4, 4), np.uint8)
    observation, _ = env.reset(seed=1)
    assert observation.shape == (3, 4, 4)
    observation, reward, *_ = env.step([0, 0])
    assert reward == 2.0
    assert observation[:, 0, 0].tolist() == [0, 0, 20]
    for _ in range(3):
        env.step([0, 0])
    _, reward, terminated, *_ = env.step([0, 0])
    assert (reward, terminated) == (1.0, True)  # the ninth step is the last
    coloured = EnvironmentSpec(environment=f"{games}:Picture", action_mask=False, frame_stack=2)
    assert coloured.make().observation_space.shape == (6, 10, 12)


def test_an_image_of_another_type_than_its_space_counts_as_raised() -> None:
    class Shares(gymnasium.Env):  # type: ignore[type-arg]
        observation_space = spaces.Box(0, 255, (8, 8, 3), np.uint8)

        def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
            return np.full((8, 8, 3), 0.5), {}

    env = ImagePreprocessing(Shares(), resize=4, grey=True, stack=2)
    with pytest.raises(SpecError, match="expected uint8 as the space says, got float64: return"):
        env.reset()


def test_a_stack_keeps_images_of_an_environment_that_reuses_its_array(games: str) -> None:
    env = EnvironmentSpec(environment=f"{games}:Reused", frame_stack=3).make()
    env.reset(seed=1)
    env.step(0)
    observation, *_ = env.step(0)
    assert observation[:, 0, 0].tolist() == [0, 1, 2]


@pytest.mark.parametrize("parts", [False, True])
@pytest.mark.parametrize("stepping", ["worker", "processes"])
def test_the_last_observation_of_an_episode_outlasts_a_reset_into_the_same_array(
    games: str, stepping: Any, parts: bool
) -> None:
    spec = EnvironmentSpec(
        environment=f"{games}:Reused", kwargs={"parts": parts}, stepping=stepping
    )
    environments = spec.make_vector(1)
    environments.reset(seed=1)
    for _ in range(3):
        observation, *_, info = environments.step(np.zeros(1, np.int64))
    final = info["final_obs"][0]
    assert (final["of"] if parts else final)[0, 0] == 3
    assert (observation["of"] if parts else observation)[0, 0, 0] == 0
    environments.close()


@pytest.mark.parametrize("parts", [False, True])
@pytest.mark.parametrize("fails_at", [1, 2])
def test_a_step_that_fails_leaves_the_observation_before_it_as_it_was(
    games: str, fails_at: int, parts: bool
) -> None:
    kwargs = {"parts": parts, "fails_at": fails_at}
    env = EnvironmentSpec(environment=f"{games}:Reused", kwargs=kwargs).make()
    env.reset(seed=1)
    for _ in range(fails_at):
        observation, _, _, truncated, _ = env.step(0)
    assert truncated
    assert (observation["of"] if parts else observation)[0, 0] == fails_at - 1


def test_a_resized_pixel_is_the_mean_of_its_area() -> None:
    from bray_actor.environments.images import _area_weights

    image = np.arange(36, dtype=np.float32).reshape(6, 6)
    small = _area_weights(6, 3) @ image @ _area_weights(6, 3).T
    np.testing.assert_allclose(small, image.reshape(3, 2, 3, 2).mean((1, 3)))
    np.testing.assert_allclose(_area_weights(3, 2), [[2 / 3, 1 / 3, 0], [0, 1 / 3, 2 / 3]])


@pytest.mark.parametrize("stepping", ["worker", "processes"])
def test_an_environment_that_raises_is_made_anew(games: str, stepping: Any) -> None:
    errors()
    spec = EnvironmentSpec(environment=f"{games}:Push", kwargs={"fails_at": [3]}, stepping=stepping)
    environments = spec.make_vector(2)
    environments.reset(seed=1)
    for _ in range(2):
        environments.step(np.zeros(2, np.int64))
    observation, reward, terminated, truncated, info = environments.step(np.zeros(2, np.int64))
    assert truncated.tolist() == [True, True]
    assert terminated.tolist() == [False, False]
    assert reward.tolist() == [0.0, 0.0]
    assert observation.tolist() == [[0.0, 0.0]] * 2  # of the next episode
    np.testing.assert_allclose(info["final_obs"][1], [0.2, 0.2])  # the last that was seen
    assert errors() == 2
    with pytest.raises(BrayError, match=rf"failed {MAX_ERRORS + 1} times .* boom"):
        step_on(environments)
    environments.close()


def step_on(environments: Any, number: int = 2) -> None:
    for _ in range(100):
        environments.step(np.zeros(number, np.int64))


@pytest.mark.parametrize(
    ("of", "words"),
    [
        ("reset", "reset: expected .observation, info., got an array of shape .2,."),
        ("info", "reset: info: expected a dict, got None"),
        ("shape", "reset: observation: expected numbers of shape .2,., got an array of shape .3,."),
        ("nan", "reset: observation: expected numbers, got NaN among them"),
        (
            "old",
            "step: expected .observation, .*, info., got a tuple of 4: what Gym called done is",
        ),
        ("reward", "step: reward: expected .* got an array of shape .1,. .*several in a wrapper"),
        ("no reward", "step: reward: expected a finite number, got None"),
        ("endless", "step: reward: expected a finite number, got float 'inf'"),
        ("no info", "step: info: expected a dict, got None"),
        ("no end", "step: terminated: expected True or False, got None"),
        ("a word", "step: terminated: expected True or False, got str 'False'"),
        ("ends", "step: truncated: expected True or False, got an array of shape .1,."),
        ("grown", "step: observation: expected numbers of shape .2,., got an array of shape"),
    ],
)
def test_what_no_environment_returns_counts_as_raised(games: str, of: str, words: str) -> None:
    errors()
    spec = EnvironmentSpec(environment=f"{games}:Wrong", kwargs={"of": of})
    if words.startswith("reset"):
        with pytest.raises(
            BrayError, match=rf"reset failed 3 times, the last .*SpecError: {words}"
        ):
            spec.make()
        return
    env = spec.make()
    env.reset(seed=1)
    observation, reward, terminated, truncated, info = env.step(0)
    assert (observation.tolist(), reward, terminated, truncated) == ([0, 0], 0.0, False, True)
    assert re.match(f"SpecError: {words}", info["environment_error"])
    assert errors() == 1


@pytest.mark.parametrize("frame_skip", [1, 2])
def test_a_word_is_no_reward(games: str, frame_skip: int) -> None:
    """With a skip it had been read as a number, without one it was refused."""
    kwargs = {"of": "paid in words"}
    env = EnvironmentSpec(environment=f"{games}:Wrong", kwargs=kwargs, frame_skip=frame_skip).make()
    env.reset(seed=1)
    info = env.step(0)[4]
    assert info["environment_error"].startswith("SpecError: step: reward: expected a finite number")


def test_an_end_may_be_told_as_a_number(games: str) -> None:
    env = EnvironmentSpec(environment=f"{games}:Wrong", kwargs={"of": "number"}).make()
    env.reset(seed=1)
    _, _, terminated, truncated, info = env.step(0)
    assert (terminated, truncated, info) == (1, 0, {})


def test_a_category_has_its_values_alone(games: str) -> None:
    def place(**kwargs: int) -> Any:
        return EnvironmentSpec(environment=f"{games}:Place", kwargs=kwargs).make()

    env = place(goes=1)
    assert env.reset(seed=1)[0] == 0
    assert env.step(0)[0] == 1
    env = place(goes=2)
    env.reset(seed=1)
    _, _, _, truncated, info = env.step(0)
    words = r"SpecError: step: observation: expected whole numbers from -1 to 1, as Discrete.*got 2"
    assert truncated
    assert re.match(words, info["environment_error"])
    with pytest.raises(BrayError, match=r"reset: observation: expected whole .* got -2: mend"):
        place(begins=-2)
    several = spaces.MultiDiscrete([2, 3], start=[0, 5])
    check_observation(several, [1, 7], "seen")
    with pytest.raises(SpecError, match=r"seen: expected whole numbers from 5 to 7, .* got 8"):
        check_observation(several, [1, 8], "seen")


def test_an_environment_that_cannot_be_closed_has_been_played(
    games: str, caplog: pytest.LogCaptureFixture
) -> None:
    for _ in range(2):
        EnvironmentSpec(environment=f"{games}:Stuck").make().close()
    assert caplog.text.count("the window is gone") == 1


@pytest.mark.parametrize("stepping", ["worker", "processes"])
def test_a_game_that_ends_the_program_counts_as_raised(games: str, stepping: Any) -> None:
    spec = EnvironmentSpec(environment=f"{games}:Leaving", stepping=stepping)
    environments = spec.make_vector(1)
    environments.reset(seed=1)
    words = rf":Leaving failed {MAX_ERRORS + 1} times .* SystemExit: 3 \({games}.py, line "
    with pytest.raises(BrayError, match=words):
        step_on(environments, 1)
    environments.close()


def test_a_program_that_is_ended_within_a_step_ends(games: str) -> None:
    def leave(number: int, frame: object) -> NoReturn:
        raise SystemExit(143)

    env = EnvironmentSpec(environment=f"{games}:Ended").make()
    env.reset(seed=1)
    before = signal.signal(signal.SIGTERM, leave)
    try:
        with pytest.raises(SystemExit, match="143"):
            env.step(0)
    finally:
        signal.signal(signal.SIGTERM, before)


def test_what_a_game_prints_is_no_answer_of_its_process(games: str) -> None:
    server = ServerThread(Zero)
    words = [sys.executable, "-m", "bray_actor.gamecores.gamecore", "--env", f"{games}:Loud"]
    words += ["--address", server.addresses[0], "--episodes", "2", "--json"]
    done = subprocess.run(words, capture_output=True, text=True, check=True, timeout=60)
    server.close()
    assert json.loads(done.stdout) == {"returns": [5.0, 5.0]}
    assert "welcome\nfrom C++\n" in done.stderr


def test_an_old_reset_is_told_what_to_write(games: str) -> None:
    with pytest.raises(
        BrayError, match=r":Old: reset failed 3.*: write `def reset\(self, \*, seed"
    ):
        EnvironmentSpec(environment=f"{games}:Old").make()


def test_what_is_raised_is_told_with_its_line(games: str) -> None:
    env = EnvironmentSpec(environment=f"{games}:Push", kwargs={"fails_at": [1]}).make()
    env.reset(seed=1)
    words = env.step(0)[4]["environment_error"]
    line = 1 + GAMES.splitlines().index('            raise RuntimeError("boom\\nin the middle")')
    assert words == f"RuntimeError: boom ({games}.py, line {line}, in step)"


def test_nested_observations_have_their_parts() -> None:
    space = spaces.Dict({"a": spaces.Tuple([spaces.Discrete(2), spaces.Box(-1, 1, (2,))])})
    check_observation(space, {"a": (1, [0.5, 0.5]), "more": 3}, "seen")
    for value, words in (
        ({"b": 1}, r"seen: expected a dict of \['a'\], got \['b'\]"),
        (3, "seen: expected a dict of .*, got int '3'"),
        ({"a": (1,)}, "seen/a: expected a tuple of 2, got a tuple of 1"),
        ({"a": (1, [[0.5], [1, 2]])}, r"seen/a\[1\]: expected numbers of shape \(2,\), got list"),
        ({"a": ("x", [0, 0])}, r"seen/a\[0\]: expected numbers of shape \(\), got str 'x'"),
    ):
        with pytest.raises(SpecError, match=words):
            check_observation(space, value, "seen")


def odd_at_step(space: spaces.Space[Any], good: Any, bad: Any, reward: float = 1.0) -> Any:
    """Return an environment whose second step returns `bad`, and what counts its errors."""

    class Odd(gymnasium.Env[Any, Any]):
        observation_space = space
        action_space = spaces.Discrete(2)

        def reset(self, *, seed: Any = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
            self.count = 0
            return good, {}

        def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
            self.count += 1
            is_bad = self.count == 2
            return (bad if is_bad else good), (reward if is_bad else 1.0), False, False, {}

    return RecoveringEnvironment(Odd, "odd", reports=False)


LINE = spaces.Box(-1, 1, (3,), np.float32)
PIXELS = spaces.Box(0, 255, (3,), np.uint8)
BYTES = spaces.Box(-128, 127, (3,), np.int8)
HALVES = spaces.Box(-np.inf, np.inf, (3,), np.float16)
PARTS = spaces.Dict({"a": LINE, "b": spaces.Discrete(4)})
PAIR = spaces.Tuple([LINE, spaces.Discrete(4)])
ZEROS = np.zeros(3, np.float32)


@pytest.mark.parametrize(
    ("space", "good", "bad", "words"),
    [
        (PARTS, {"a": ZEROS, "b": 1}, {"a": ZEROS}, "expected a dict of"),
        (PARTS, {"a": ZEROS, "b": 1}, None, "expected a dict of"),
        (PARTS, {"a": ZEROS, "b": 1}, {"a": ZEROS[:2], "b": 1}, r"/a: expected numbers of shape"),
        (PARTS, {"a": ZEROS, "b": 1}, {"a": 1.0, "b": 1}, r"/a: expected numbers of shape"),
        (PARTS, {"a": ZEROS, "b": 1}, {"a": ZEROS, "b": 9}, r"/b: expected whole numbers from 0"),
        (PARTS, {"a": ZEROS, "b": 1}, {"a": ZEROS, "b": 1.5}, r"/b: expected int64 .*got float64"),
        (PAIR, (ZEROS, 1), (ZEROS,), "expected a tuple of 2, got a tuple of 1"),
        (PAIR, (ZEROS, 1), (ZEROS, 1, 2), "expected a tuple of 2, got a tuple of 3"),
        (spaces.MultiDiscrete([2, 3]), [1, 2], np.array([1, 3]), "expected whole numbers from 0"),
        (spaces.Box(-1, 1, ()), np.float32(0), None, "expected numbers of shape"),
        (LINE, ZEROS, np.array([0, np.nan, 0], np.float32), "got NaN among them"),
        (LINE, ZEROS, np.array([0, np.inf, 0], np.float32), "got inf, which float32 has not"),
        (LINE, ZEROS, np.array([0, 1e300, 0]), r"got 1e\+300, which float32 has not"),
        (PIXELS, ZEROS.astype(np.uint8), ZEROS, "expected uint8 as the space says, got float32"),
        (PIXELS, ZEROS.astype(np.uint8), np.zeros(3, int), "expected uint8 .*got int64"),
        (BYTES, ZEROS.astype(int), np.array([0, 200, 0]), "expected int8 as .*, got 200: let"),
        (BYTES, [0, 0, 0], [0, -300, 0], "expected int8 as .*, got -300: let"),
        (BYTES, [0, 0, 0], np.array([0, 200, 0], np.uint8), "got 200: let the space say uint8"),
        (HALVES, ZEROS, np.array([0, 1e5, 0]), "expected float16 as .*, got 100000.0: let"),
    ],
)
def test_an_observation_that_is_none_of_its_space_counts_as_raised(
    space: Any, good: Any, bad: Any, words: str
) -> None:
    env = odd_at_step(space, good, bad)
    env.reset(seed=1)
    assert "environment_error" not in env.step(0)[4]
    observation, reward, _, truncated, info = env.step(0)
    assert re.match(f"SpecError: step: observation.*{words}", info["environment_error"])
    assert (reward, truncated) == (0.0, True)
    np.testing.assert_equal(observation, good)


@pytest.mark.parametrize(
    ("space", "seen"),
    [
        (LINE, np.ones(3)),
        (LINE, [1, 0, 0]),
        (LINE, np.array([1, 2, 3], np.int16)),
        (LINE, np.array([1e25, -3e38, 0])),
        (spaces.Box(-1, 1, (2,), np.float16), np.full(2, 6e4, np.float16)),
        (PIXELS, np.array([True, False, True])),
        (spaces.Box(0, 255, (), np.uint8), 200),
        (spaces.Discrete(4), np.uint8(3)),
        (spaces.MultiBinary(2), np.array([1, 0])),
        (spaces.MultiDiscrete([2, 3]), [1, 2]),
        (PARTS, {"a": ZEROS, "b": 3, "more": "words"}),
        (PAIR, (ZEROS, 3)),
        (PAIR, [ZEROS, np.int64(3)]),
    ],
)
def test_what_its_space_can_hold_passes(space: Any, seen: Any) -> None:
    env = odd_at_step(space, seen, seen)
    env.reset(seed=1)
    for _ in range(3):
        assert "environment_error" not in env.step(0)[4]


@pytest.mark.parametrize("reward", [1e39, -1e39, float("nan")])
def test_a_reward_that_float32_has_not_counts_as_raised(reward: float) -> None:
    env = odd_at_step(LINE, ZEROS, ZEROS, reward)
    env.reset(seed=1)
    env.step(0)
    assert "step: reward: expected a finite number, got" in env.step(0)[4]["environment_error"]


def test_an_environment_that_never_begins_ends_the_run(games: str) -> None:
    env = EnvironmentSpec(environment=f"{games}:Push", kwargs={"fails_in_reset": True})
    with pytest.raises(BrayError, match=r"reset failed 3 times.* no start .*: mend the env"):
        env.make_vector(1).reset(seed=1)


def test_errors_in_gamecores_truncate_the_episode(games: str) -> None:
    spec = EnvironmentSpec(environment=f"{games}:Push", kwargs={"fails_at": [3]})
    assert play(spec, Zero, episodes=2) == [2.0, 2.0]


@pytest.mark.timeout(120)
def test_a_process_that_was_killed_is_started_again(games: str) -> None:
    errors()
    environments = EnvironmentSpec(
        environment=f"{games}:Push", kwargs={"length": 50}, stepping="processes"
    ).make_vector(2)
    environments.reset(seed=1)
    environments.step(np.zeros(2, np.int64))
    os.kill(environments.processes[0].pid, signal.SIGKILL)
    deadline = time.monotonic() + 20
    while environments.processes[0].is_alive() and time.monotonic() < deadline:
        time.sleep(0.01)
    _, _, _, truncated, info = environments.step(np.zeros(2, np.int64))
    assert truncated.tolist() == [True, True]
    np.testing.assert_allclose(info["final_obs"][0], [0.1, 0.1])
    assert errors() == 1
    observation, reward, *_ = environments.step(np.zeros(2, np.int64))
    assert reward.tolist() == [1.0, 1.0]
    np.testing.assert_allclose(observation, np.full((2, 2), 0.1))
    environments.close()


@pytest.mark.timeout(120)
def test_processes_outlive_the_terminal_until_all_is_saved(games: str) -> None:
    errors()
    environments = EnvironmentSpec(environment=f"{games}:Push", stepping="processes").make_vector(2)
    environments.reset(seed=1)
    for process in environments.processes:
        os.kill(process.pid, signal.SIGHUP)
    time.sleep(0.2)
    _, _, _, truncated, _ = environments.step(np.zeros(2, np.int64))
    assert (truncated.tolist(), errors()) == ([False, False], 0)
    environments.close()


def test_a_file_is_no_environment() -> None:
    with pytest.raises(ConfigError, match=r"'rows\.jsonl': expected an id of Gymnasium, module:Id"):
        resolve("rows.jsonl")
