"""How environments of several agents are described, found and made."""

from __future__ import annotations

import json
import math
import pickle
import re
import sys
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
from gymnasium import spaces
from pettingzoo import AECEnv, ParallelEnv

from bray_actor.environments.error_limit import ERROR, MAX_ERRORS
from bray_actor.multi_agent.environment import AgentTick
from bray_actor.multi_agent.making import MultiAgentSpec, adapted
from bray_actor.multi_agent.open_spiel_game import OpenSpielGame
from bray_actor.multi_agent.parallel_game import ParallelGame
from bray_actor.multi_agent.pettingzoo_modules import known_modules
from bray_actor.multi_agent.recovering_game import RecoveringGame
from bray_actor.multi_agent.turn_game import TurnGame
from bray_core.errors import BrayError, ConfigError, MissingExtraError, SpecError
from bray_core.spaces import LeafSpace, Spaces


class Pair(ParallelEnv):  # type: ignore[misc]
    """Two agents that tell masks in their infos; a third comes in the second step."""

    metadata: ClassVar[Any] = {"name": "pair", "is_parallelizable": True}
    possible_agents: ClassVar[Any] = ["a", "b", "late"]

    def __init__(self, length: int = 3, fails_at: int = -1) -> None:
        self.length, self.fails_at = length, fails_at

    def observation_space(self, agent: str) -> Any:
        return spaces.Box(0, 100, (1,), np.float32)

    def action_space(self, agent: str) -> Any:
        return spaces.Discrete(3, start=1)

    def reset(self, seed: int | None = None, options: Any = None) -> Any:
        self.at, self.agents, self.took = 0, ["a", "b"], []
        return self._seen(), self._infos()

    def _seen(self) -> Any:
        return {agent: np.array([self.at], np.float32) for agent in self.agents}

    def _infos(self) -> Any:
        return {agent: {"action_mask": np.array([1, 0, 1])} for agent in self.agents}

    def step(self, actions: Any) -> Any:
        self.at += 1
        if self.at == self.fails_at:
            raise RuntimeError("broke")
        self.took.append(actions)
        seen, infos = self._seen(), self._infos()
        rewards = dict.fromkeys(self.agents, 1.0)
        ended = dict.fromkeys(self.agents, self.at == self.length)
        if self.at == self.length:
            self.agents = []
        elif self.at == 1:
            self.agents = ["a", "late"]  # b leaves without a word
            seen, infos = {**self._seen(), **seen}, {**self._infos(), **infos}
        return seen, rewards, ended, dict.fromkeys(ended, False), infos


class Silent(Pair):
    """Likewise without a list of those who may come."""

    possible_agents = None


class Odd:
    """No environment."""


class Wrapped(Pair):
    """A wrapper that keeps what it wraps."""

    def __init__(self, env: Any) -> None:
        super().__init__()
        self.env = env


def make_pair(**kwargs: Any) -> Any:
    return Pair(**kwargs)


def test_agents_come_and_go_and_their_masks_are_a_part_of_what_they_see() -> None:
    env = Pair()
    game = ParallelGame(env)
    assert game.agents == ["a", "b", "late"]
    shown = game.spaces("a")
    assert shown.observation["action_mask"] == LeafSpace("binary", "int8", (3,))
    ticks = game.reset(3)
    np.testing.assert_array_equal(ticks["a"].observation["action_mask"], [1, 0, 1])
    ticks = game.step({"a": np.array(0), "b": np.array(2)})
    assert env.took == [{"a": 1, "b": 3}], "numbered from where the space starts"
    assert list(ticks) == ["b", "a", "late"]
    assert (ticks["b"].terminated, ticks["b"].truncated, ticks["b"].reward) == (False, True, 1.0)
    assert not ticks["late"].has_ended
    assert ticks["late"].reward == 0.0
    ticks = game.step({"a": np.array(0), "late": np.array(0)})
    ticks = game.step({"a": np.array(0), "late": np.array(0)})
    assert all(tick.terminated and not tick.truncated for tick in ticks.values())
    with pytest.raises(ConfigError, match="action: expected one of Discrete"):
        game.step({"a": np.array(7)})


def test_who_does_not_name_its_agents_is_asked_after_a_reset() -> None:
    assert ParallelGame(Silent()).agents == ["a", "b"]


class Dying(AECEnv):  # type: ignore[misc]
    """Three agents in turn; the first one dies in its second turn, cut from outside."""

    metadata: ClassVar[Any] = {"name": "dying", "is_parallelizable": False}
    possible_agents: ClassVar[Any] = ["x", "y", "z"]

    def observation_space(self, agent: str) -> Any:
        return spaces.Discrete(100)

    def action_space(self, agent: str) -> Any:
        return spaces.Box(-1, 1, (2,), np.float32)

    def observe(self, agent: str) -> Any:
        return self.at

    def reset(self, seed: int | None = None, options: Any = None) -> None:
        self.at, self.agents = 0, list(self.possible_agents)
        self.rewards = dict.fromkeys(self.agents, 0.0)
        self._cumulative_rewards = dict.fromkeys(self.agents, 0.0)
        self.terminations = dict.fromkeys(self.agents, False)
        self.truncations = dict.fromkeys(self.agents, False)
        self.infos = {agent: {} for agent in self.agents}
        self.agent_selection = "x"

    def step(self, action: Any) -> None:
        agent = self.agent_selection
        if self.terminations[agent] or self.truncations[agent]:
            self.agent_selection = self.agents[(self.agents.index(agent) + 1) % len(self.agents)]
            following = self.agent_selection
            self.agents.remove(agent)
            for each in (self.terminations, self.truncations, self.rewards, self.infos):
                del each[agent]
            del self._cumulative_rewards[agent]
            self.agent_selection = following
            return
        self._cumulative_rewards[agent] = 0.0
        self.at += 1
        self.rewards = {each: 1.0 if each != agent else 0.5 for each in self.agents}
        for each in self.agents:
            self._cumulative_rewards[each] += self.rewards[each]
        if self.at == 3:
            self.truncations["x"] = True
        if self.at == 7:
            self.terminations.update(dict.fromkeys(self.agents, True))
        self.agent_selection = self.agents[(self.agents.index(agent) + 1) % len(self.agents)]


def test_one_acts_at_a_time_and_gets_what_came_since_its_action() -> None:
    game = TurnGame(Dying())
    ticks = game.reset(0)
    assert list(ticks) == ["x"]
    action = np.zeros(2, np.float32)
    assert game.step({"x": action})["y"].reward == 1.0
    assert game.step({"y": action})["z"].reward == 2.0
    ticks = game.step({"z": action})
    assert list(ticks) == ["x", "y"], "the dead one is told before the next acts"
    assert (ticks["x"].terminated, ticks["x"].truncated) == (False, True)
    assert ticks["x"].reward == 0.5 + 1.0 + 1.0
    assert ticks["x"].observation == 3
    assert ticks["y"].reward == 0.5 + 1.0
    ticks = game.step({"y": action})
    ticks = game.step({"z": action})
    ticks = game.step({"y": action})
    ticks = game.step({"z": action})
    assert sorted(ticks) == ["y", "z"]
    assert all(tick.terminated for tick in ticks.values())


def test_names_are_found_without_a_list_of_tasks() -> None:
    assert {"connect_four_v3", "simple_tag_v3", "pistonball_v6", "multiwalker_v9"} <= set(
        known_modules()
    )
    for name, kind in (
        ("connect_four_v3", TurnGame),
        ("mpe2.simple_spread_v3", ParallelGame),
        ("open_spiel:kuhn_poker", OpenSpielGame),
        (f"{__name__}:make_pair", ParallelGame),
        (f"{__name__}:Pair", ParallelGame),
    ):
        made: Any = MultiAgentSpec(environment=name).make()
        assert isinstance(made, RecoveringGame)
        assert isinstance(made._game, kind)
        made.close()


def test_a_module_or_file_of_yours(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path, str(tmp_path)])
    text = f"import sys\nhere = sys.modules[{__name__!r}]\nDying, Pair = here.Dying, here.Pair\n"
    Path("own_pair.py").write_text(text + "def parallel_env(**k): return Pair(**k)\nenv = Dying\n")
    Path("own_turns.py").write_text(
        f"{text}class P(Pair): metadata = {{'is_parallelizable': False}}\n"
        "parallel_env, env = P, Dying\n"
    )
    Path("own_nothing.py").write_text("x = 1\n")
    made: Any = MultiAgentSpec(environment="own_pair", kwargs={"length": 5}).make()
    assert isinstance(made._game, ParallelGame)
    assert made._game._env.length == 5
    made = MultiAgentSpec(environment="own_turns").make()
    assert isinstance(made._game, TurnGame), "a module of turns is played in turns"
    made = MultiAgentSpec(environment=f"{tmp_path}/own_pair.py:Pair").make()
    assert isinstance(made._game, ParallelGame)
    with pytest.raises(ConfigError, match="own_nothing: expected a module with parallel_env"):
        MultiAgentSpec(environment="own_nothing").make()
    with pytest.raises(ConfigError, match="own_nothing:x: expected a class or function, or paral"):
        MultiAgentSpec(environment="own_nothing:x").make()


def test_it_is_plain_data() -> None:
    wrapper = f"{__name__}:Wrapped"
    spec = MultiAgentSpec(
        environment=f"{__name__}:Pair", kwargs={"length": 2}, wrappers=(wrapper, wrapper)
    )
    assert MultiAgentSpec.from_json(spec.to_json()) == spec
    assert pickle.loads(pickle.dumps(spec)) == spec
    made: Any = spec.make()
    assert made._game._env.env.env.length == 2
    assert json.loads(spec.to_json())["kwargs"] == {"length": 2}
    assert MultiAgentSpec.of(spec) is spec
    assert MultiAgentSpec.of("rps_v2").environment == "rps_v2"
    assert MultiAgentSpec.of(make_pair).environment == f"{__name__}:make_pair"
    assert str(MultiAgentSpec(environment="some/where/own.py:Pair")) == "own.py:Pair"


def test_what_is_wrong_is_named() -> None:
    def refused(match: str, environment: str, **options: Any) -> None:
        with pytest.raises(ConfigError, match=match):
            MultiAgentSpec(environment=environment, **options).make()

    refused("unknown 'conect_four_v3', did you mean 'connect_four_v3'", "conect_four_v3")
    refused("unknown 'no name', .*|unknown 'no name': a name of PettingZoo", "no name")
    refused("no game 'leduc_pokr', did you mean 'leduc_poker'", "open_spiel:leduc_pokr")
    refused("Unknown parameter 'playrs'", "open_spiel:kuhn_poker(playrs=3)")
    refused("write all in one place", "open_spiel:kuhn_poker(players=3)", kwargs={"players": 3})
    refused("got Dynamics.MEAN_FIELD", "open_spiel:mfg_crowd_modelling")
    refused("expected a game that shows tensors", "open_spiel:coin_game")
    refused("expected none around a game", "open_spiel:kuhn_poker", wrappers=("a:B",))
    refused("got 'no_module_here:f': No module named", "no_module_here:f")
    refused("expected an environment of PettingZoo .* got Odd", f"{__name__}:Odd")
    refused("kwargs: .*does not take them", f"{__name__}:Pair", kwargs={"width": 3})
    refused(
        "wrappers: expected module:Class or file.py:Class, got 'a:B'", "rps_v2", wrappers=("a:B",)
    )
    with pytest.raises(ConfigError, match=r"wrappers: expected module:Class or file.py:Class"):
        MultiAgentSpec(environment="rps_v2", wrappers=("B",))
    with pytest.raises(ConfigError, match="at the top of a module, got <function"):
        MultiAgentSpec.of(lambda: None)
    with pytest.raises(ConfigError, match="kwargs: expected numbers, words"):
        MultiAgentSpec(environment="rps_v2", kwargs={"x": object()}).to_json()
    with pytest.raises(ConfigError, match=r"environment: expected JSON, got '\{'"):
        MultiAgentSpec.from_json("{")
    game = OpenSpielGame("tic_tac_toe")
    game.reset(0)
    game.step({"player_0": np.array(4)})
    with pytest.raises(ConfigError, match=r"action: expected one of \[0, 1.*got 4: the policy"):
        game.step({"player_1": np.array(4)})


def needy() -> None:
    """Return nothing: what it needs is not there, as Hanabi without OpenSpiel."""
    raise ModuleNotFoundError("No module named 'shimmy'")


def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyspiel", None)
    with pytest.raises(MissingExtraError, match=r"install bray-actor\[open-spiel\]"):
        MultiAgentSpec(environment="open_spiel:kuhn_poker").make()
    monkeypatch.delitem(sys.modules, "pettingzoo.classic.rps_v2", raising=False)
    monkeypatch.setitem(sys.modules, "pettingzoo.classic.rps.rps", None)
    monkeypatch.delitem(sys.modules, "pettingzoo.classic.rps", raising=False)
    with pytest.raises(ConfigError, match="rps_v2 needs a package that is not installed"):
        MultiAgentSpec(environment="rps_v2").make()
    with pytest.raises(ConfigError, match=r":needy needs a package that is not installed: No mod"):
        MultiAgentSpec.of(needy).make()
    monkeypatch.setattr("bray_actor.multi_agent.making.known_modules", dict)
    with pytest.raises(MissingExtraError, match=r"install bray-actor\[gym\]"):
        MultiAgentSpec(environment="nothing_v0").make()


def test_an_environment_that_raises_is_made_anew() -> None:
    made: list[Pair] = []

    def make() -> ParallelGame:
        made.append(Pair(fails_at=2 if len(made) < 1 else -1))
        return ParallelGame(made[-1])

    game = RecoveringGame(make, "pair")
    game.reset(5)
    ticks = game.step({"a": np.array(0), "b": np.array(0)})
    assert ERROR not in ticks["a"].info
    ticks = game.step({"a": np.array(0), "late": np.array(0)})
    words = ticks["a"].info[ERROR]
    assert re.match(r"RuntimeError: broke \(test_multi_agent_spec.py, line \d+, in step\)$", words)
    assert ticks["a"] == AgentTick(None, truncated=True, info={ERROR: words})
    assert len(made) == 2
    assert list(game.reset()) == ["a", "b"]
    with pytest.raises(ConfigError, match="action: expected one of"):
        game.step({"a": np.array(9)})
    assert len(made) == 2, "a wrong action is not the environment's fault"
    game.close()


@pytest.mark.parametrize(
    ("what", "number"), [("reward", math.nan), ("reward", 1e39), ("observation", -math.inf)]
)
def test_numbers_that_nobody_can_learn_count_as_raised(what: str, number: float) -> None:
    class Odd(Pair):
        def step(self, actions: Any) -> Any:
            seen, rewards, *rest = super().step(actions)
            if what == "reward":
                return seen, {**rewards, "a": number}, *rest
            return {**seen, "a": np.full(np.shape(seen["a"]), number)}, rewards, *rest

    game = RecoveringGame(lambda: ParallelGame(Odd()), "pair")
    game.reset(5)
    ticks = game.step({"a": np.array(0), "b": np.array(0)})
    assert all(tick.truncated for tick in ticks.values())
    words = ticks["a"].info[ERROR]
    assert re.match(rf"ValueError: {what} of a\S*: expected (a finite )?num", words)
    game.close()


def test_an_observation_of_another_form_within_a_game_counts_as_raised() -> None:
    class Odd(Pair):
        def step(self, actions: Any) -> Any:
            seen, *rest = super().step(actions)
            return {**seen, "a": np.zeros(7, np.float32)}, *rest

    game = RecoveringGame(lambda: ParallelGame(Odd()), "pair")
    game.reset(5)
    ticks = game.step({"a": np.array(0), "b": np.array(0)})
    assert all(tick.truncated for tick in ticks.values())
    words = "observation of a/observation: expected float32 (1,), got float32 (7,)"
    assert ticks["a"].info[ERROR] == f"ValueError: {words}"
    game.close()


def test_a_number_that_a_category_does_not_have_counts_as_raised() -> None:
    class Odd(Pair):
        def observation_space(self, agent: str) -> Any:
            return spaces.Dict(x=spaces.MultiDiscrete([3, 4], start=[5, 0]), y=spaces.Discrete(2))

        def _seen(self) -> Any:
            return {agent: {"x": np.array([5, 2 * self.at]), "y": 1} for agent in self.agents}

    game = RecoveringGame(lambda: ParallelGame(Odd(length=9)), "pair")
    game.reset(5)
    acts = {"a": np.array(0), "b": np.array(0)}
    ticks = game.step(acts)
    assert not ticks["a"].has_ended
    ticks = game.step(acts)
    assert ticks["a"].truncated
    words = "observation of a/observation/x: expected whole numbers from 0 to 3, got 4"
    assert ticks["a"].info[ERROR] == f"ValueError: {words}"
    game.close()


class Unready(Pair):
    def reset(self, seed: int | None = None, options: Any = None) -> Any:
        raise RuntimeError("no licence")


class Unseeded(Pair):
    def reset(self) -> Any:  # type: ignore[override]
        return super().reset()


class WithoutInfos(Pair):
    def reset(self, seed: int | None = None, options: Any = None) -> Any:
        return super().reset()[0]


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        (Unready, "pair raised before its first game, mend it: RuntimeError: no licence "),
        (Unseeded, "write `def reset(self, *, seed=None, options=None)`"),
        (WithoutInfos, "reset: expected (observations, infos), each by agent, got dict"),
    ],
)
def test_an_environment_that_cannot_be_reset_is_told_in_words(kind: Any, words: str) -> None:
    with pytest.raises(BrayError, match=rf"^environment: .*{re.escape(words)}"):
        RecoveringGame(lambda: adapted(kind(), "pair"), "pair")


def test_a_game_of_several_that_ends_the_program_is_made_anew() -> None:
    class Leaving(Pair):
        def step(self, actions: Any) -> Any:
            raise SystemExit(3)

    game = RecoveringGame(lambda: ParallelGame(Leaving()), "pair")
    game.reset(5)
    ticks = game.step({"a": np.array(0), "b": np.array(0)})
    assert ticks["a"].truncated
    assert ticks["a"].info[ERROR].startswith("SystemExit: 3")
    game.close()


def test_one_that_keeps_failing_ends_the_run() -> None:
    game = RecoveringGame(lambda: ParallelGame(Pair(fails_at=1)), "pair")

    def play() -> None:
        for _ in range(MAX_ERRORS + 1):
            game.reset(1)
            game.step({"a": np.array(0), "b": np.array(0)})

    with pytest.raises(BrayError, match=rf"pair failed {MAX_ERRORS + 1} times .*Error: broke"):
        play()


def test_a_mask_of_another_size_is_refused() -> None:
    class Narrow(Pair):
        def _infos(self) -> Any:
            return {agent: {"action_mask": np.ones(2)} for agent in self.agents}

    with pytest.raises(SpecError, match="action_mask: expected 3 flags, one an action, got 2"):
        ParallelGame(Narrow()).reset(0)


def test_one_of_bray_own_stays_as_it_is() -> None:
    class Own:
        agents = ("a",)

        def spaces(self, agent: str) -> Spaces:
            raise NotImplementedError

    own: Any = Own()
    assert adapted(own, "own") is own
