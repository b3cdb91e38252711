"""What episodes tell besides their rewards: in vector environments, and over the wire."""

from __future__ import annotations

import math
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from bray_actor import PolicyActor, PolicyConfig, Runner, segment_spec
from bray_actor.environments.spec import EnvironmentSpec
from bray_actor.episodes import (
    MAX_NAMES,
    EpisodeLog,
    MetricNames,
    PlayedEpisode,
    checked_metrics,
    metrics_of_info,
)
from bray_actor.gamecores.gamecore import play
from bray_actor.reset_options import NewResetOptions, ResetOptions
from bray_actor.runners.rollouts import Played, Rollouts, tell
from bray_core import codec
from bray_core.errors import ConfigError, ServiceError, SpecError
from bray_core.layout import Layout
from bray_core.nested import ArraySpec
from bray_core.protocols import Answer

MODES = [AutoresetMode.NEXT_STEP, AutoresetMode.SAME_STEP, AutoresetMode.DISABLED]
ORIGIN = "metrics"


class Counter(gymnasium.Env[Any, Any]):
    """Ends after as many steps as its options say, by default three."""

    observation_space = spaces.Box(0, 100, (1,), np.float32)
    action_space = spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, Any]:
        super().reset(seed=seed)
        self.most = int((options or {}).get("most", 3))
        self.steps = 0
        return np.zeros(1, np.float32), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, Any]:
        self.steps += 1
        ended = self.steps == self.most
        info = {"metrics": {"most": self.most}, "won": True, "why": "lost"} if ended else {}
        return np.full(1, self.steps, np.float32), 1.0, ended, False, info


class EvenModel:
    """Both actions alike."""

    version = 1
    signature = None

    async def infer(self, observation: Any, batch: bool = False) -> Answer:
        lead = (len(observation),) if batch else ()
        outputs = {"logits": np.zeros((*lead, 2), np.float32), "value": np.zeros(lead, np.float32)}
        return Answer(outputs, self.version)

    async def wait_version(self, version: int, timeout_s: float) -> None: ...


class Dropped:
    """A buffer that keeps nothing."""

    layout = Layout(segment_spec(ArraySpec(np.dtype("f4"), (1,)), ArraySpec(np.dtype("i8"), ()), 4))

    def push(self, *segments: Any, **options: Any) -> int:
        return len(segments)


def rollouts(environment: Any, **options: Any) -> Rollouts:
    model: Any = EvenModel()
    buffer: Any = Dropped()
    return Rollouts(Runner(environment, model, buffer, **options))


@pytest.mark.parametrize("mode", MODES)
def test_a_runner_tells_of_episodes_however_these_begin_anew(mode: AutoresetMode) -> None:
    environment = SyncVectorEnv([Counter] * 2, autoreset_mode=mode)
    source = rollouts(environment, info_metrics=("won",))
    source.collect(7)
    played = source.poll()
    source.close()
    episode = PlayedEpisode(3.0, 3, {"won": 1.0, "most": 3.0})
    assert played == Played(14, [3.0] * 4, episodes=(episode,) * 4)
    both = played.joined(Played(1, [2.0]))
    assert both == Played(15, [3.0] * 4 + [2.0], episodes=(episode,) * 4)


@pytest.mark.parametrize("stepping", ["worker", "processes"])
def test_options_reach_environments_at_their_next_reset(stepping: Any) -> None:
    spec = EnvironmentSpec(environment=f"{__file__}:Counter", stepping=stepping)
    source = rollouts(spec.make_vector(2), reset_options={"most": 2})
    source.collect(3)
    source.tell(NewResetOptions({"most": 4}))
    source.collect(5)
    lengths = [episode.length for episode in source.poll().episodes]
    source.close()
    assert lengths == [2, 2, 2, 2, 4, 4]


def test_a_runner_that_takes_no_options_says_so() -> None:
    with pytest.raises(ConfigError, match=r"source\.curriculum: object resets .* without options"):
        tell(object(), NewResetOptions({}))  # type: ignore[arg-type]


def test_gamecores_tell_metrics_and_take_options() -> None:
    log, options = EpisodeLog(), ResetOptions()
    options.propose({"most": 2})
    model: Any = EvenModel()
    make = PolicyActor.factory(model, PolicyConfig(), episodes=log, options=options)

    def after(episode_return: float) -> None:
        options.propose({"most": 5})

    spec = EnvironmentSpec(environment=f"{__file__}:Counter", info_metrics=("won",))
    returns = play(spec, make, episodes=3, on_episode=after)
    assert returns == [2.0, 2.0, 5.0], "what is proposed counts after the next tick"
    wanted = [PlayedEpisode(n, int(n), {"won": 1.0, "most": n}) for n in returns]
    assert log.take() == wanted
    assert log.take() == []


@pytest.mark.asyncio
async def test_a_start_tells_its_options() -> None:
    options = ResetOptions()
    model: Any = EvenModel()
    actor = PolicyActor("0/1", model, PolicyConfig(), options=options)
    assert codec.decode(await actor.start(b"")) == {}
    options.propose({"level": 3, "name": "ice"})
    assert codec.decode(await actor.start(b"")) == {"settings": {"level": 3, "name": "ice"}}


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ([1.0], "metrics: expected numbers by name, got list"),
        ({"a b": 1}, "metrics: expected names of letters, digits, _ . and -.*got 'a b'"),
        ({"x" * 65: 1}, "at most 64 characters"),
        ({"won": "yes"}, "metrics: won: expected a number, got 'yes'"),
        ({"won": math.nan}, "metrics: won: expected a finite number, got nan"),
        ({"won": 10**400}, "metrics: won: expected a finite number"),
        ({"won": [1, 2]}, r"metrics: won: expected a number, got \[1, 2\]|an array"),
        ({f"m{i}": 1 for i in range(65)}, "metrics: expected at most 64 names, got 65"),
    ],
)
@pytest.mark.asyncio
async def test_what_a_simulator_sends_is_checked(given: Any, message: str) -> None:
    with pytest.raises(SpecError, match=message):
        checked_metrics(given)
    if given == {"won": 10**400}:
        return  # no number of the codec
    model: Any = EvenModel()
    actor = PolicyActor("0/1", model, PolicyConfig())
    await actor.start(b"")
    await actor.tick(codec.encode({"observation": np.zeros(1, np.float32)}))
    end = {"reward": 1.0, "terminated": True, "metrics": given}
    with pytest.raises(ServiceError, match=message) as failure:
        await actor.end(codec.encode(end))
    assert failure.value.code == "bad_request"


def test_a_process_takes_so_many_names() -> None:
    names = MetricNames()
    names.admit(ORIGIN, [f"m{i}" for i in range(MAX_NAMES)])
    names.admit(ORIGIN, ["m0", "m63"])
    with pytest.raises(SpecError, match="expected at most 64 names in one process, got 'm64'"):
        names.admit(ORIGIN, ["m1", "m64"])


def test_infos_of_one_and_of_many() -> None:
    assert metrics_of_info({"won": True, "metrics": {"a": 2}}, None, ["won", "gone"]) == {
        "won": 1.0,
        "a": 2.0,
    }
    many = {"metrics": np.array([{"a": 1}, None], object), "_metrics": np.array([True, False])}
    assert metrics_of_info(many, 0, []) == {"a": 1.0}
    assert metrics_of_info(many, 1, []) == {}
    with pytest.raises(SpecError, match="info: metrics: expected numbers by name, got 3"):
        metrics_of_info({"metrics": 3}, None, [])


@pytest.mark.parametrize("names", [("a b",), ("x" * 65,), tuple(f"m{i}" for i in range(65))])
def test_names_in_settings_are_checked(names: tuple[str, ...]) -> None:
    with pytest.raises(ConfigError, match="info_metrics: expected"):
        EnvironmentSpec(environment="CartPole-v1", info_metrics=names)
