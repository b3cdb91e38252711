"""Templates that are wrong in every way that people, and those who mean harm, write them.

Each is refused with file, line, key, what was expected and the nearest name, before anything plays;
none is a traceback, and none takes long.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import named_parts
import pytest
import yaml
from test_composition_runs import RACE, run_of

from bray.templates import loading
from bray_core.errors import BrayError, ConfigError, SettingsError

PPO = "steps_per_replay: 32, epochs: 1, minibatch_size: 32"
TWO = f"trainers: {{red: {{algorithm: ppo, {PPO}}}, blue: {{algorithm: ppo, {PPO}}}}}\n"
GOAL = "goal: {agent: red, max_frames: 64, evaluation_episodes: 2}\n"
POLE = "sources: {pole: {environment: CartPole-v1, num_envs: 2}}\n"
SEEN = "{observation: {shape: [2]}, action: {discrete: 3}}"


def race(kind: str, rest: str) -> str:
    return f'sources:\n  race: {{kind: {kind}, environment: "{RACE}", num_envs: 2,\n    {rest}}}\n'


BOTH = race("agents", "agents: {red: red, blue: blue}")
MATCH = race("matches", "opponents: {rule: past}")
BOT = TWO.split(", blue")[0] + "}\nagents: {red: {}, bot: {play: 'bots.py:f'}}\n"
WON = "goal: {agent: red, win_rate: 0.5,\n  against: X, max_frames: 64}\n"
DATA = "buffers: {d: {kind: dataset,\n  path: nowhere}}\n"

# What a run finds: line, key and words.
LAUNCHED = {
    "an unknown seat": (
        TWO + race("agents", "agents: {red: red, blu: blue}") + GOAL,
        r":4:\d+: sources\.race\.agents\.blu: .* got 'blu', did you mean 'blue'\?; there are: red",
    ),
    "a pattern of nobody": (
        TWO + race("agents", "agents: {'gr*': red, '*': blue}") + GOAL,
        r":4:\d+: sources\.race\.agents\.gr\*: expected the name of an agent",
    ),
    "a version before it exists": (
        TWO + MATCH + WON.replace("X", "v3"),
        r":6:\d+: goal\.against: expected a version that the trial has, none yet, got 'v3'",
    ),
    "a script that there is not": (
        TWO + MATCH + WON.replace("X", "'no.py:f'"),
        r":6:\d+: goal\.against: no\.py:f: expected module:function",
    ),
    "a search that nobody knows": (
        TWO + MATCH + WON.replace("X", "search"),
        r":6:\d+: goal\.against: search: expected a game whose rules bray knows",
    ),
    "an agent whose script is not there": (
        BOT + race("matches", "agents: {'*': red}") + WON.replace("X", "bot"),
        r":2:\d+: agents\.bot\.play: .*bots\.py",
    ),
    "roles of some": (
        TWO + race("matches", "opponents: {rule: league, roles: {red: main}}") + GOAL,
        r":4:\d+: sources\.race\.opponents\.roles: expected those of the learners",
    ),
    "a side of nobody": (
        TWO + race("matches", "sides: {a: 'r*', b: 'z*'}") + GOAL,
        r":4:\d+: sources\.race\.sides: expected one side for agent 'blue', got none",
    ),
    "arguments that are not taken": (
        TWO + race("agents", "kwargs: {speed: 3}, agents: {red: red, blue: blue}") + GOAL,
        r":4:\d+: sources\.race\.kwargs: .* does not take them",
    ),
    "a wrapper that there is not": (
        TWO + race("agents", "wrappers: ['x:y'], agents: {red: red, blue: blue}") + GOAL,
        r":4:\d+: sources\.race\.wrappers: expected module:Class .* No module named 'x'",
    ),
    "lanes that do not divide": (
        TWO.replace("32, epochs", "33, epochs") + BOTH + GOAL,
        r":3:\d+: sources\.race\.num_envs: .* to divide the 33 steps of a replay",
    ),
    "a model of nowhere": (
        TWO.split(", blue")[0] + "}\nmodels: {red: {},\n  blue: {load: nowhere}}\n" + BOTH + GOAL,
        r":3:\d+: models\.blue\.load: nowhere: no such folder",
    ),
    "a network that there is not": (
        "models: {red: {network: 'nets.py:Big'}, blue: {}}\n" + TWO + BOTH + GOAL,
        r":1:\d+: models\.red\.network: .* no file",
    ),
    "an encoder of no leaf": (
        "models: {red: {encoders: {x: cnn}}, blue: {}}\n" + TWO + BOTH + GOAL,
        r":1:\d+: models\.red\.encoders\.x: no such leaf of the observation; known: observation",
    ),
    "a network of terabytes": (
        "models: {red: {hidden: [100000000000]}, blue: {}}\n" + TWO + BOTH + GOAL,
        r":2:\d+: trainers\.red: expected settings that fit into this machine's memory",
    ),
    "environments without number": (
        TWO + BOTH.replace("num_envs: 2", "num_envs: 100000000000") + GOAL,
        r"expected settings that fit into this machine's memory: Unable to allocate",
    ),
    "a data set of nowhere": (
        DATA + "trainers: {red: {algorithm: rl_imitation, inputs: {demonstrations: d}}}\n" + POLE,
        r":2:\d+: buffers\.d\.path: demonstrations: expected a folder of \*\.episode files",
    ),
    "a data set with a zero byte": (
        DATA.replace("nowhere", '"no\\0where"')
        + "trainers: {red: {algorithm: rl_imitation, inputs: {demonstrations: d}}}\n"
        + POLE,
        r":2:\d+: buffers\.d\.path: demonstrations: expected the path of a data set",
    ),
    "a beginning of nowhere": (
        "buffers: {p: {begin_with: nowhere}}\n"
        "trainers: {red: {algorithm: dqn, inputs: {experience: p}}}\n" + POLE,
        r":1:\d+: buffers\.p\.begin_with: demonstrations: expected a folder",
    ),
    "a program that there is not": (
        f"models: {{red: {{spaces: &s {SEEN}}}, blue: {{spaces: *s}}}}\n" + TWO + "sources:\n"
        "  g: {kind: agents, command: './nosuch {port}', lanes: 2,\n"
        "    agents: {red: red, blue: blue}}\n" + GOAL,
        r":4:\d+: sources\.g\.command: expected a program that can be run, got './nosuch'",
    ),
}


@pytest.mark.parametrize("case", LAUNCHED)
def test_what_a_run_refuses_before_it_plays(
    case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text, words = LAUNCHED[case]
    monkeypatch.chdir(tmp_path)
    with pytest.raises(BrayError) as caught:
        run_of(tmp_path, text, exports=False)
    assert re.search(words, str(caught.value)), caught.value
    assert str(caught.value).startswith(str(tmp_path / "template.yaml")), caught.value


# What reading finds: line, key and words.
READ = {
    "empty sources": (TWO + "sources:\n", r"sources: missing: expected what is played"),
    "sources of nobody": (TWO + "sources: {}\n", r"sources: missing: expected what is played"),
    "empty trainers": ("trainers:\n" + POLE, r"trainers: missing: expected a trainer"),
    "a number as a name": ("trainers: {3: {algorithm: ppo}}\n" + POLE, r"1: trainers\.3: expected"),
    "a key twice": (TWO + TWO + POLE, r"2: trainers: given twice"),
    "a part twice": (
        "trainers:\n  a: {algorithm: ppo}\n  a: {algorithm: dqn}\n" + POLE,
        r"3: .*a: given twice",
    ),
    "an anchor of nothing": ("trainers: *gone\n" + POLE, r"1: .*gone"),
    "an anchor of itself": ("trainers: &t {a: *t}\n" + POLE, r"1: "),
    "no number": (TWO.replace("32, epochs", ".nan, epochs") + POLE, r"1: .*steps_per_replay: exp"),
    "a number without end": (
        TWO.replace("32, epochs", ".inf, epochs") + POLE,
        r"1: .*steps_per_replay: expected",
    ),
    "a negative count": (
        TWO + POLE.replace("num_envs: 2", "num_envs: -2"),
        r"sources\.pole\.num_envs: expected 1 or more, got -2",
    ),
    "text as a number": (
        TWO + POLE.replace("num_envs: 2", "num_envs: two"),
        r"sources\.pole\.num_envs: expected .*'two'",
    ),
    "a number of many digits": (
        TWO + POLE + f"seed: {'9' * 5000}\n",
        r"3: ",
    ),
    "several in an environment of one": (
        TWO + "sources: {p: {environment: CartPole-v1, agents: {a: red, b: blue}}}\n" + GOAL,
        r"2: sources\.p\.agents: expected one agent, got red, blue: one agent plays",
    ),
    "a replay for PPO": (
        "trainers: {a: {algorithm: ppo, buffer: r}}\n"
        "buffers: {r: {kind: replay, capacity: 9, batch_size: 4}}\n" + POLE,
        r"2: buffers\.r\.kind: expected queue for PPO \(trainers\.a\), got replay",
    ),
    "a queue for DQN": (
        "trainers: {a: {algorithm: dqn, buffer: r}}\n"
        "buffers: {r: {kind: queue, batch_size: 4}}\n" + POLE,
        r"2: buffers\.r\.kind: expected replay for DQN \(trainers\.a\), got queue",
    ),
    "a replay of segments for DQN": (
        "trainers: {a: {algorithm: dqn, buffer: r}}\n"
        "buffers: {r: {kind: replay, unit: segment, capacity: 9, batch_size: 4}}\n" + POLE,
        r"2: buffers\.r\.unit: expected transition for DQN \(trainers\.a\), got segment",
    ),
    "a list of buffers for an agent": (
        TWO + "agents: {red: {buffer: [red]}, blue: {}}\n" + POLE,
        r"2: agents\.red\.buffer: expected the name of a buffer, .*got \['red'\]",
    ),
    "shares of no buffer": (
        TWO + "agents: {red: {buffer: {}}, blue: {}}\n" + POLE,
        r"2: agents\.red\.buffer: expected the name of a buffer, .*got \{\}",
    ),
    "an opponent of many letters": (
        TWO + MATCH + WON.replace("X", "x" * 5000),
        r"6: goal\.against: expected the name of an agent",
    ),
    "a name in braces": (
        TWO + "sources: {g: {kind: agents, command: './x {prot}', agents: {x: red, y: blue}}}\n",
        r"2: sources\.g\.command: unknown name \{prot\}, did you mean 'port'\?",
    ),
}


@pytest.mark.parametrize("case", READ)
def test_what_reading_refuses(case: str) -> None:
    text, words = READ[case]
    with pytest.raises(SettingsError) as caught:
        loading.parse(text, "f")
    found = [f"{one.place.split(':')[1]}: {one.text}" for one in caught.value.problems]
    assert any(re.search(words, one) for one in found), found


BAD = (None, [], {}, -1, float("nan"), 10**400, "x", True, {1: 2}, {"a": {"b": [1]}}, "x" * 5000)


def changed(settings: Any) -> Iterator[Any]:
    """Yield a template once for each of its values and each bad one in its place."""
    for path in list(paths(settings)):
        for bad in BAD:
            made = copy.deepcopy(settings)
            inner = made
            for key in path[:-1]:
                inner = inner[key]
            inner[path[-1]] = bad
            yield made


def paths(settings: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    items = settings.items() if isinstance(settings, dict) else enumerate(settings)
    for key, value in items:
        yield (*path, key)
        if isinstance(value, dict | list):
            yield from paths(value, (*path, key))


@pytest.mark.long
@pytest.mark.parametrize("name", ["four", "mixed"])
def test_whatever_stands_in_a_place_is_read_or_refused_with_its_place(name: str) -> None:
    for settings in changed(yaml.safe_load(named_parts.ALL[name])):
        text = yaml.safe_dump(settings, sort_keys=False)
        try:
            loading.parse(text, "f")
        except SettingsError as error:
            assert all(re.match(r"f:\d+:\d+", one.place) for one in error.problems), text
        except ConfigError as error:
            raise AssertionError(f"{error}: without a place: {text}") from error
