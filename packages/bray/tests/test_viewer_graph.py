"""A template as its graph: parts and wires of both forms, problems at their parts, and edits."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from viewer_client import Answer, ask

from bray.templates import loading
from bray.templates.template import names
from bray.viewer.server import Viewer
from bray.viewer.system_figures import wire_figures
from bray.viewer.templates.template_text import inspect_template
from bray_core.metrics.json_lines import Row

SHORT = "# mine\nalgorithm: ppo\nsource:\n  environment: CartPole-v1\n"
TAG = """\
# hunters and hunted
source:
  kind: agents
  environment: simple_tag_v3
  agents: {"adversary_*": hunter, "agent_*": runner}
trainers:
  hunter: {algorithm: ppo}
  runner: {algorithm: dqn}
buffers:
  runner: {kind: replay, capacity: 100, batch_size: 8}
goal: {agent: hunter}
"""

MANY = "models:\n" + "".join(f"  m{i}:\n" for i in range(401))


@pytest.fixture(scope="module")
def building(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Viewer]:
    folder = tmp_path_factory.mktemp("graphs")
    viewer = Viewer(folder / "trials", builder=folder)
    yield viewer
    viewer.close()


def send(viewer: Viewer, path: str, content: Any) -> Answer:
    sent = {"Bray_Page": "1", "Content_Type": "application/json"}
    return ask(viewer, f"/api/builder/{path}", "POST", json.dumps(content), **sent)


def graph_of(text: str) -> dict[str, Any]:
    found: Any = inspect_template(text)["graph"]
    return dict(found)


def wires_of(text: str) -> list[str]:
    """Return wires as text; those that the template writes end with `!`."""
    return [
        f"{one['source']} {one['name']} {one['target']}{'!' if one['is_written'] else ''}"
        for one in graph_of(text)["wires"]
    ]


def edit(viewer: Viewer, text: str, **change: Any) -> str:
    answer = send(viewer, "edit", {"text": text, "edit": change})
    assert answer.status == 200, answer.json
    return str(answer.json["text"])


def join(viewer: Viewer, text: str, start: str, end: str, **change: Any) -> str:
    return edit(viewer, text, act="connect", **{"from": start, "to": end}, **change)


@pytest.mark.parametrize("name", names())
def test_a_shipped_template_is_one_part_of_each_kind(building: Viewer, name: str) -> None:
    text = loading.path_of(name).read_text()
    answer = send(building, "check", {"text": text}).json
    kinds = [part["kind"] for part in answer["graph"]["parts"] if part["kind"] != "render"]
    assert sorted(kinds) == ["actor", "agent", "buffer", "model", "source", "trainer"]
    assert answer["graph"]["is_full"] == (name == "league")  # whose source has a kind
    assert answer["problems"] == []
    assert {"sources.source * agents.policy", "trainers.policy trains models.policy"} < set(
        wires_of(text)
    )


def test_two_trainers_have_their_own_wires() -> None:
    assert set(wires_of(TAG)) == {
        "actors.source workers sources.source",
        "sources.source adversary_* agents.hunter!",
        "sources.source agent_* agents.runner!",
        "agents.hunter asks models.hunter",
        "agents.hunter steps buffers.hunter",
        "agents.runner asks models.runner",
        "agents.runner steps buffers.runner",
        "buffers.hunter experience trainers.hunter",
        "buffers.runner experience trainers.runner",
        "trainers.hunter trains models.hunter",
        "trainers.runner trains models.runner",
    }
    parts = {one["id"]: one for one in graph_of(TAG)["parts"]}
    assert parts["trainers.hunter"]["summary"] == "ppo"
    assert (parts["buffers.runner"]["is_written"], parts["buffers.hunter"]["is_written"]) == (
        True,
        False,
    )


def test_mixtures_renders_actors_and_scripts_are_drawn() -> None:
    text = (
        "trainers: {a: {algorithm: dqn, inputs: {experience: both}}}\n"
        "buffers:\n  both: {kind: mixture, of: {old: 0.25, new: 0.75}}\n"
        "  old: {kind: dataset, path: x}\n  new: {kind: replay}\n"
        "agents: {a: {buffer: new}, other: {play: random}}\n"
        "sources: {game: {kind: matches, environment: connect_four_v3, actor: many}}\n"
        "actors: {many: {num_workers: 2}}\nrenders: {shown: {source: game}}\n"
    )
    assert {
        "buffers.old 0.25 buffers.both!",
        "buffers.new 0.75 buffers.both!",
        "buffers.both experience trainers.a!",
        "agents.a steps buffers.new!",
        "actors.many workers sources.game!",
        "renders.shown shows sources.game!",
    } < set(wires_of(text))


@pytest.mark.parametrize(
    ("text", "key", "part"),
    [
        (TAG + "seed: -1\n", "seed", None),
        (TAG.replace("algorithm: ppo", "algorithm: ppo, gamma: 3"), "trainers.hunter.gamma", "="),
        (TAG.replace("agent: hunter", "agent: nobody"), "goal.agent", None),
        (TAG + "models: {hunter: , runner: , spare: }\n", "models.spare", "="),
        (TAG.replace('": runner', '": walker'), "sources.source.agents.agent_*", "="),
        (SHORT + "trainer: {gamma: 3}\n", "trainer.gamma", "trainers.policy"),
        (SHORT.replace("ppo", "pppo"), "algorithm", "trainers.policy"),
        ("source: [", "", None),
    ],
)
def test_a_problem_is_at_its_part(text: str, key: str, part: str | None) -> None:
    found = {one["key"]: one["part"] for one in inspect_template(text)["problems"]}
    assert found[key] == (".".join(key.split(".")[:2]) if part == "=" else part)


@pytest.mark.parametrize(
    "text",
    [
        "", "[1]", "3", "a: 1", "trainers: 5", "trainers: [a]\nsources: 3", "model: x\nmodels: {}",
        "trainers: {a: 3, B: {}, c: {algorithm: [1], model: {}, inputs: 4}}\nsources: {x: null}",
        "trainers: {a: {algorithm: ppo, model: [1], inputs: {experience: [1], 3: x}}}",
        "buffers: {a: {kind: mixture, of: {a: 1}}, b: {kind: mixture, of: [1]}, c: {kind: [x]}}",
        "agents: {a: {play: [1], model: a, buffer: {}}}\nsources: {a: {agents: {'*': [a]}}}",
        "sources: {a: {kind: 3, agents: x, actor: [1]}}\nrenders: {a: {source: {}}}\ngoal: 3",
        "algorithm: {a: 1}\nsource: {kind: [1]}", "algorithm: ppo\ntrainer:\nsource:\nmodel:",
    ],
)  # fmt: skip
def test_a_graph_is_drawn_of_whatever_was_typed(text: str) -> None:
    found = inspect_template(text)
    assert found["problems"]
    json.dumps(found)


def test_code_of_ones_own_is_shown_and_never_run(
    building: Viewer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "evil_code.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')")
    monkeypatch.syspath_prepend(str(tmp_path))
    text = (
        "trainers: {a: {algorithm: 'evil_code:A'}}\nagents: {b: {play: 'evil_code:play'}}\n"
        "sources: {s: {kind: 'evil_code:S'}}\nrenders: {r: {function: 'evil_code:draw'}}\n"
    )
    found = send(building, "check", {"text": text}).json
    summaries = {one["id"]: one["summary"] for one in found["graph"]["parts"]}
    assert summaries["trainers.a"] == "evil_code:A"
    assert summaries["sources.s"] == "evil_code:S"
    said = {one["part"] for one in found["problems"] if "which is not run here" in one["text"]}
    assert said == {"trainers.a", "sources.s"}
    for part in ("trainers.a", "sources.s", "agents.b", "renders.r"):
        schema = send(building, "part", {"text": text, "part": part}).json["schema"]
        assert schema["properties"]
    edit(building, text, act="add", kind="buffer")
    edit(building, text, act="set", part="trainers.a", settings={"algorithm": "evil_code:B"})
    assert not (tmp_path / "ran").exists()


def test_a_template_grows_from_nothing(building: Viewer) -> None:
    text = edit(building, "# mine\n", act="add", kind="source")
    text = edit(building, text, act="add", kind="trainer", name="pole")
    text = edit(building, text, act="add", kind="model", name="net")
    text = join(building, text, "trainers.pole", "models.net")
    text = edit(building, text, act="add", kind="buffer", name="steps")
    text = join(building, text, "buffers.steps", "trainers.pole")
    text = edit(building, text, act="set", part="", settings={"goal": {"max_frames": 500}})
    assert text.startswith("# mine\nsources:\n")
    assert yaml.safe_load(text) == {
        "sources": {"source": {"environment": "CartPole-v1"}},
        "trainers": {
            "pole": {"algorithm": "ppo", "model": "net", "inputs": {"experience": "steps"}}
        },
        "models": {"net": {}},
        "buffers": {"steps": {}},
        "goal": {"max_frames": 500},
    }
    assert inspect_template(text)["problems"] == []


def test_the_short_form_stays_short_until_a_part_has_a_name(building: Viewer) -> None:
    trainer = {"algorithm": "ppo", "gamma": 0.9}
    text = edit(building, SHORT, act="set", part="trainers.policy", settings=trainer)
    assert text == SHORT + "trainer:\n  gamma: 0.9\n"
    text = edit(building, text, act="set", part="models.policy", settings={"hidden": [8]})
    assert yaml.safe_load(text)["model"] == {"hidden": [8]}
    text = edit(building, text, act="add", kind="trainer")
    assert yaml.safe_load(text) == {
        "trainers": {
            "policy": {"algorithm": "ppo", "gamma": 0.9},
            "policy_2": {"algorithm": "ppo"},
        },
        "models": {"policy": {"hidden": [8]}},
        "sources": {"source": {"environment": "CartPole-v1", "agents": {"*": "policy"}}},
    }


def test_a_part_that_is_renamed_keeps_its_wires(building: Viewer) -> None:
    text = TAG + "models: {runner: {hidden: [8]}}\n"
    before = wires_of(text)
    text = edit(building, text, act="rename", part="trainers.runner", name="second")
    moved = [one.replace("trainers.runner", "trainers.second").rstrip("!") for one in before]
    assert sorted(one.rstrip("!") for one in wires_of(text)) == sorted(moved)
    assert yaml.safe_load(text)["trainers"]["second"]["inputs"] == {"experience": "runner"}
    assert inspect_template(text)["problems"] == []
    text = edit(building, TAG, act="rename", part="trainers.hunter", name="third")
    found = yaml.safe_load(text)  # with the model and the agent that have its name
    assert found["sources"]["source"]["agents"] == {"adversary_*": "third", "agent_*": "runner"}
    assert found["goal"] == {"agent": "third"}
    assert inspect_template(text)["problems"] == []


def test_wires_are_named_and_cut(building: Viewer) -> None:
    text = edit(building, SHORT, act="add", kind="trainer")
    text = join(building, text, "sources.source", "agents.policy")
    text = join(building, text, "agents.policy_2", "sources.source")  # either way round
    text = join(building, text, "sources.source", "agents.policy_2", name="b_*", was="policy_2*")
    agents = yaml.safe_load(text)["sources"]["source"]["agents"]
    assert list(agents.items()) == [("b_*", "policy_2"), ("*", "policy")]  # `*` fits all: last
    text = edit(building, text, act="disconnect", path=["sources", "source", "agents", "b_*"])
    assert yaml.safe_load(text)["sources"]["source"]["agents"] == {"*": "policy"}
    text = edit(building, text, act="remove", part="trainers.policy_2")
    assert inspect_template(text)["problems"] == []


def test_buffers_are_mixed_and_removed(building: Viewer) -> None:
    text = edit(building, SHORT.replace("ppo", "dqn"), act="add", kind="buffer", name="both")
    text = edit(building, text, act="add", kind="buffer", name="new")
    text = edit(building, text, act="set", part="buffers.new", settings={"kind": "replay"})
    text = join(building, text, "buffers.new", "buffers.both", name="0.5")
    text = join(building, text, "buffers.both", "trainers.policy")
    assert yaml.safe_load(text)["buffers"] == {
        "both": {"of": {"new": 0.5}, "kind": "mixture"},
        "new": {"kind": "replay"},
    }
    text = edit(building, text, act="rename", part="buffers.new", name="fresh")
    assert yaml.safe_load(text)["buffers"]["both"]["of"] == {"fresh": 0.5}
    text = edit(building, text, act="remove", part="buffers.both")
    assert "inputs" not in yaml.safe_load(text)["trainers"]["policy"]


def test_another_algorithm_forgets_the_settings_of_the_one_before(building: Viewer) -> None:
    settings = {"algorithm": "dqn", "epochs": 4, "gamma": 0.9, "tpyo": 1}
    text = TAG.replace("{algorithm: ppo}", "{algorithm: ppo, epochs: 4}")
    text = edit(building, text, act="set", part="trainers.hunter", settings=settings)
    kept = {"algorithm": "dqn", "gamma": 0.9, "tpyo": 1}  # what never was a setting stays visible
    assert yaml.safe_load(text)["trainers"]["hunter"] == kept


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({}, "act: expected a text"),
        ({"act": "explode"}, "act: expected set, add, remove"),
        ({"act": "add", "kind": "goal"}, "kind: expected one of model"),
        ({"act": "add", "kind": "model", "name": "../x"}, "name: expected small letters"),
        ({"act": "add", "kind": "trainer", "name": "hunter"}, "hunter there is already"),
        ({"act": "remove", "part": "models.hunter"}, "models.hunter is not written"),
        ({"act": "rename", "part": "models.hunter", "name": "x"}, "rename what it follows from"),
        ({"act": "rename", "part": "trainers.hunter", "name": "runner"}, "there is already"),
        ({"act": "remove", "part": "__class__.x"}, "part: expected the id of a part"),
        ({"act": "connect", "from": "models.hunter", "to": "models.runner"}, "a model is not"),
        ({"act": "connect", "from": "x", "to": "models.runner"}, "from: expected the id"),
        ({"act": "disconnect", "path": ["goal"]}, "path: expected that of a wire"),
        ({"act": "set", "part": "trainers.hunter", "settings": 3}, "settings: expected an object"),
        ({"act": "set", "part": "trainers.x", "settings": {}}, "part: expected the id"),
        ({"act": "set", "part": "", "settings": {"goal": "x" * 40_000}}, "32768 bytes at most"),
    ],
)
def test_edits_that_are_none_are_told(building: Viewer, change: Any, said: str) -> None:
    answer = send(building, "edit", {"text": TAG, "edit": change})
    assert answer.status == 400
    assert said in answer.json["error"]["message"]


def test_hostile_bodies_are_told(building: Viewer) -> None:
    deep: Any = {}
    for _ in range(200):
        deep = {"a": deep}
    add = {"act": "add", "kind": "model"}
    for content, said in (
        ({"text": TAG, "edit": deep}, "nested too deeply"),
        ({"text": TAG}, "edit: expected an object"),
        ({"text": "a: [", "edit": add}, "not valid YAML"),
        ({"text": "[1]", "edit": add}, "text: expected settings"),
        ({"text": "#" * 40_000, "edit": add}, "text: expected 32768 bytes at most"),
        ({"text": "models: 3", "edit": add}, "models: expected settings by name"),
        ({"text": MANY, "edit": add}, "edit: expected a template of 400 parts at most"),
    ):
        answer = send(building, "edit", content)
        assert (answer.status, said in answer.json["error"]["message"]) == (400, True), answer.json
    answer = send(building, "part", {"text": TAG, "part": "trainers.nobody"})
    assert "part: expected the id of a part" in answer.json["error"]["message"]


def test_a_parts_form_has_its_settings_and_no_wires(building: Viewer) -> None:
    def properties(part: str) -> dict[str, Any]:
        found = send(building, "part", {"text": TAG, "part": part}).json["schema"]["properties"]
        return dict(found)

    trainer = properties("trainers.hunter")
    assert next(iter(trainer)) == "algorithm"
    assert "dqn" in trainer["algorithm"]["enum"]
    assert {"epochs", "gamma"} < set(trainer)
    assert not {"model", "inputs", "buffer"} & set(trainer)
    assert "agents" in properties("sources.source")["kind"]["enum"]
    assert "capacity" in properties("buffers.runner")
    assert "num_workers" in properties("actors.source")
    assert {"enable", "seed", "goal", "keep"} <= set(properties(""))


def test_a_schedule_is_set_like_a_number(building: Viewer) -> None:
    rate = {"start": 1e-3, "end": 1e-5, "frames": 1e5}
    settings = {"algorithm": "ppo", "learning_rate": rate}
    text = edit(building, SHORT, act="set", part="trainers.policy", settings=settings)
    assert yaml.safe_load(text)["trainer"] == {"learning_rate": rate}
    assert inspect_template(text)["problems"] == []


def test_only_a_trial_that_there_is_is_served(building: Viewer) -> None:
    saved = {"file": "served.yaml", "text": SHORT, "stamp": None}
    assert send(building, "save", saved).status == 200
    answer = send(building, "serve", {"file": "served.yaml"})
    assert "no served yet: start it first" in answer.json["error"]["message"]
    assert send(building, "serve", {"file": "../served.yaml"}).status == 400


def test_figures_of_wires_are_those_of_their_trainer() -> None:
    def row(at_s: float, **values: float) -> Row:
        return Row(
            frames=0, steps=0, policy_version=0, seconds=at_s, wall_time_s=at_s, values=values
        )

    rows = [
        row(1.0, **{"actor/steps": 0.0, "trainer/frames{trainer=hunter}": 0.0}),
        row(3.0, **{"actor/steps": 100.0, "trainer/frames{trainer=hunter}": 40.0}),
        row(3.0, **{"trainer/policy_version": 7.0, "actor/steps{phase=evaluation}": 9.0}),
    ]
    shown = [(one["wire"], one["trainer"], one["value"]) for one in wire_figures(rows)]
    assert shown == [
        ("source-agent", None, 50.0),
        ("buffer-trainer", "hunter", 20.0),
        ("trainer-model", None, 7.0),
    ]
