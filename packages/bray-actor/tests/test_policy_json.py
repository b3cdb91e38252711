"""Policy actors answered in JSON: the same sessions, segments and recordings as in the codec."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from bray_actor import Agent, AgentActor, PolicyActor, PolicyConfig, Recorder, segment_spec
from bray_actor.recording import read_episode
from bray_core import codec
from bray_core.errors import ServiceError
from bray_core.json_body import JsonBody
from bray_core.layout import Layout, Packed
from bray_core.nested import ArraySpec
from bray_core.protocols import Answer
from bray_server import Client, InProcessClient, ServerThread

SCRIPT = Path(__file__).parents[3] / "clients" / "curl" / "cartpole.sh"
SESSION = "game-1"
T = 8
PLAIN = ArraySpec(np.dtype("f4"), (4,))
NESTED = {
    "units": {"hp": ArraySpec(np.dtype("i2"), (3,)), "alive": ArraySpec(np.dtype("?"), (3,))},
    "map": ArraySpec(np.dtype("u1"), (2, 2)),
    "pair": (ArraySpec(np.dtype("f4"), (2,)), ArraySpec(np.dtype("i8"), ())),
}
LISTS = {
    "units": {"hp": [1, -2, 300], "alive": [True, False, 1.0 > 0]},
    "map": [[0, 255], [1, 2]],
    "pair": [[0.1, 2], 7],
}
ARRAYS = {
    "units": {"hp": np.array([1, -2, 300], "i2"), "alive": np.array([True, False, True])},
    "map": np.array([[0, 255], [1, 2]], "u1"),
    "pair": (np.array([0.1, 2], "f4"), np.array(7, "i8")),
}


class Coin:
    """A policy that draws one of two actions, whatever it sees; strict about what it is given."""

    version = 3

    def __init__(self, observation: Any, knows_spec: bool = True) -> None:
        self.seen: list[Any] = []
        if knows_spec:
            self.signature = SimpleNamespace(inputs=(observation,))

    async def infer(self, observation: Any, batch: bool = False) -> Answer:
        self.seen.append(observation)
        outputs = {"logits": np.zeros(2, np.float32), "value": np.float32(0.5)}
        return Answer(outputs, self.version)


class Collector:
    """A buffer that keeps the bytes of all segments."""

    def __init__(self, observation: Any) -> None:
        self.layout = Layout(segment_spec(observation, ArraySpec(np.dtype("i8"), ()), T))
        self.blocks: list[bytes] = []

    def push(self, *segments: Packed, wait: bool = False, timeout_s: float | None = None) -> int:
        self.blocks += [segment.block.tobytes() for segment in segments]
        return len(segments)


@contextmanager
def served(observation: Any, knows_spec: bool = True) -> Iterator[tuple[ServerThread, Collector]]:
    buffer = Collector(observation)
    model, config = Coin(observation, knows_spec), PolicyConfig(seed=1)
    factory = PolicyActor.factory(model, config, buffer=buffer)
    with closing(ServerThread(factory, http_port=0)) as server:
        yield server, buffer


def as_json(message: Any) -> bytes:
    return JsonBody(json.dumps(message).encode())


def messages(observation: Any, steps: int) -> list[tuple[str, Any]]:
    last = {"observation": observation, "reward": 1, "terminated": False, "truncated": True}
    later = {"observation": observation, "reward": -0.5}
    return [
        ("start", {}),
        ("tick", {"observation": observation}),
        *[("tick", later)] * (steps - 1),
        ("end", last),
    ]


def play(address: str, requests: list[tuple[str, bytes]], **options: Any) -> list[bytes]:
    with Client(address, **options) as client:
        calls: dict[str, Callable[[str, bytes], bytes]] = {
            "start": client.start,
            "tick": client.tick,
            "end": client.end,
        }
        return [calls[kind](SESSION, body) for kind, body in requests]


def test_plain_numbers_of_the_codec_are_choices_as_numpys_scalars_are() -> None:
    """Simulators in other languages have no arrays without dimensions."""

    def plain(tree: Any) -> Any:
        if isinstance(tree, dict):
            return {name: plain(child) for name, child in tree.items()}
        if isinstance(tree, tuple):
            return [plain(child) for child in tree]
        return tree if tree.ndim else tree.item()

    spec = {**NESTED, "flag": ArraySpec(np.dtype("?"), ()), "wide": ArraySpec(np.dtype("f4"), ())}
    arrays = {**ARRAYS, "flag": np.array(True), "wide": np.array(2, "f4")}
    blocks = []
    for observation in (arrays, plain(arrays), {**plain(arrays), "wide": 2}):
        with served(spec) as (server, buffer):
            requests = [(k, codec.encode(body)) for k, body in messages(observation, 3)]
            play(server.addresses[0], requests)
            blocks.append(buffer.blocks)
    assert blocks[0] == blocks[1] == blocks[2]
    assert blocks[0]
    one = ArraySpec(np.dtype("i8"), ())
    with served(one) as (server, buffer), Client(server.addresses[0]) as client:
        client.start(SESSION, codec.encode({}))
        client.tick(SESSION, codec.encode({"observation": 5}))
        with pytest.raises(ServiceError, match=r"observation: expected int64 \(\), got a fraction"):
            client.tick(SESSION, codec.encode({"observation": 0.5, "reward": 1.0}))


def test_a_list_in_the_codec_is_told_to_be_an_array() -> None:
    spec = {"position": ArraySpec(np.dtype("f4"), (3,))}
    with served(spec) as (server, _), Client(server.addresses[0]) as client:
        client.start(SESSION)
        text = r"observation/position: expected float32 \(3,\), got a list: send an array"
        with pytest.raises(ServiceError, match=text):
            client.tick(SESSION, codec.encode({"observation": {"position": [1.0, 2.0, 3.0]}}))


@pytest.mark.parametrize("port", [0, 1], ids=["tcp", "http"])
@pytest.mark.parametrize("knows_spec", [True, False], ids=["model's spec", "buffer's spec"])
@pytest.mark.parametrize(
    ("spec", "lists", "arrays"),
    [(PLAIN, [0.1, -1, 2, 3], np.array([0.1, -1, 2, 3], "f4")), (NESTED, LISTS, ARRAYS)],
    ids=["one array", "nested"],
)
def test_a_session_in_json_is_recorded_as_in_the_codec(
    port: int, knows_spec: bool, spec: Any, lists: Any, arrays: Any
) -> None:
    with served(spec, knows_spec) as (server, buffer):
        coded = [(kind, codec.encode(message)) for kind, message in messages(arrays, 20)]
        expected = [codec.decode(reply) for reply in play(server.addresses[port], coded)]
        blocks, buffer.blocks = buffer.blocks, []
        texts = [(kind, as_json(message)) for kind, message in messages(lists, 20)]
        replies = play(server.addresses[port], texts)
        assert {type(reply) for reply in replies} == {JsonBody}
        assert [json.loads(reply) for reply in replies] == expected
        assert len(blocks) == 3
        assert buffer.blocks == blocks


def test_json_under_delta_encoding_and_beside_the_codec() -> None:
    """Each frame says for itself what it is."""
    with served(PLAIN) as (server, buffer):
        array = np.array([1, 2, 3, 4], "f4")
        coded = [(kind, codec.encode(message)) for kind, message in messages(array, 9)]
        play(server.addresses[0], coded)
        blocks, buffer.blocks = buffer.blocks, []
        texts = [(kind, as_json(message)) for kind, message in messages([1, 2, 3, 4], 9)]
        mixed = [texts[i] if i % 2 else coded[i] for i in range(len(coded))]
        for requests in (texts, mixed):
            replies = play(server.addresses[0], requests, delta=True)
            for (_, body), reply in zip(requests, replies, strict=True):
                assert type(reply) is type(body)
            assert buffer.blocks == blocks
            buffer.blocks = []


@pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not installed")
def test_curl_plays_a_session() -> None:
    with served(PLAIN) as (server, buffer):
        command = ["sh", str(SCRIPT), server.addresses[1], SESSION, "20"]
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
        assert done.returncode == 0, done.stdout + done.stderr
        blocks, buffer.blocks = buffer.blocks, []
        lines = [line.partition(" ") for line in done.stdout.splitlines()]
        assert [kind for kind, _, _ in lines] == ["start", *["tick"] * 20, "end"]
        coded = []
        for kind, _, text in lines:
            message = json.loads(text)
            if "observation" in message:
                message["observation"] = np.array(message["observation"], np.float32)
            coded.append((kind, codec.encode(message)))
        play(server.addresses[0], coded)
        assert len(blocks) == 3
        assert buffer.blocks == blocks


@pytest.mark.parametrize("port", [0, 1], ids=["tcp", "http"])
@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "body: decode: expected JSON"),
        ("[1, 2]", "body: expected an object, got a list"),
        ("", r"body: expected the key 'observation', got \[\]"),
        ('{"observation": [1, 2, 3, NaN]}', "body: decode: expected JSON in UTF-8: .*NaN"),
        ('{"observation": [1, 2, 3]}', r"observation: expected float32 \(4,\), got numbers of sh"),
        (
            '{"observation": [[1, 2], [3]]}',
            "observation: .*, got lists of unequal lengths",
        ),
        ('{"observation": [1, 2, 3, "4"]}', "observation: expected .*, got a list with a string"),
        ('{"observation": null}', "observation: expected .*, got null"),
        ('{"observation": [1, 2, 3, 1e39]}', "observation: .*a number out of the range of float32"),
        ('{"observation": [1, 2, 3, 4], "observation": [1, 2, 3, 4]}', "each key once .*'observ"),
        ('{"observation": [1, 2, 3, 4], "reward": "1"}', "reward: expected a number, got str"),
    ],
)
def test_what_is_malformed_is_the_clients_error(port: int, text: str, message: str) -> None:
    """And nothing was executed: the same session goes on, over the same connection."""
    with served(PLAIN) as (server, buffer), Client(server.addresses[port]) as client:
        client.start(SESSION, JsonBody(b"{}"))
        client.tick(SESSION, JsonBody(b'{"observation": [1, 2, 3, 4]}'))
        with pytest.raises(ServiceError, match=f"bad_request: .*{message}"):
            client.tick(SESSION, JsonBody(text.encode()))
        client.tick(SESSION, JsonBody(b'{"observation": [1, 2, 3, 4], "reward": 1}'))
        client.end(SESSION, JsonBody(b'{"reward": 1, "terminated": true}'))
        (block,) = buffer.blocks
        segment = buffer.layout.views(np.frombuffer(block, np.uint8))
        assert (int(segment["length"]), segment["reward"][:3].tolist()) == (2, [1, 1, 0])


@pytest.mark.parametrize(
    ("spec", "text", "message"),
    [
        (ArraySpec(np.dtype("i4"), ()), "1.5", "expected int32 (), got a fraction"),
        (ArraySpec(np.dtype("u1"), (1,)), "[256]", "got a number that is not between 0 and 255"),
        (NESTED, '{"units": {}, "map": [], "pair": []}', "observation/units/hp: missing"),
    ],
)
def test_integers_and_nested_observations_that_do_not_fit(
    spec: Any, text: str, message: str
) -> None:
    with served(spec) as (server, _), Client(server.addresses[0]) as client:
        client.start(SESSION, JsonBody(b""))
        with pytest.raises(ServiceError) as caught:
            client.tick(SESSION, JsonBody(b'{"observation": %b}' % text.encode()))
        assert caught.value.code == "bad_request"
        assert message in str(caught.value)


UNITS = {
    "observation": {"units": {"most": 3, "features": 2}, "gold": {"shape": [1]}},
    "action": {"discrete": 2},
}


@contextmanager
def served_sets() -> Iterator[tuple[ServerThread, Coin]]:
    spec = {"units": ArraySpec(np.dtype("f4"), (3, 3)), "gold": ArraySpec(np.dtype("f4"), (1,))}
    model = Coin(spec)
    factory = PolicyActor.factory(model, PolicyConfig(spaces=UNITS))
    with closing(ServerThread(factory, http_port=0)) as server:
        yield server, model


@pytest.mark.parametrize(
    ("units", "rows"),
    [
        ([], [[0, 0, 0]] * 3),
        ([[1, 2.5]], [[1, 2.5, 1], [0, 0, 0], [0, 0, 0]]),
        ([[1, 2], [3, 4], [5, 6]], [[1, 2, 1], [3, 4, 1], [5, 6, 1]]),
        ([[7, 8, 1], [0, 0, 0], [9, 9, 1]], [[7, 8, 1], [0, 0, 0], [9, 9, 1]]),
    ],
    ids=["nobody", "one", "full", "padded already"],
)
def test_sets_are_lists_of_members(units: Any, rows: Any) -> None:
    with served_sets() as (server, model), Client(server.addresses[0]) as client:
        client.start(SESSION, JsonBody(b"{}"))
        client.tick(SESSION, as_json({"observation": {"units": units, "gold": [1]}}))
        (seen,) = model.seen
        assert seen["units"].dtype == np.float32
        assert seen["units"].tolist() == rows


@pytest.mark.parametrize(
    ("units", "words"),
    [
        ([[1, 2]] * 4, r"observation/units: expected up to 3 members of 2 numbers.*\(4, 2\)"),
        ([[1, 2, 3, 4]], "observation/units: expected up to 3 members of 2 numbers"),
        ([[1, 2], [3]], "observation/units: .*got lists of unequal lengths"),
        ("soldiers", "observation/units: .*got a string"),
        (5, "observation/units: .*got one number"),
    ],
)
def test_what_is_no_set_is_the_clients_error(units: Any, words: str) -> None:
    with served_sets() as (server, _), Client(server.addresses[0]) as client:
        client.start(SESSION, JsonBody(b"{}"))
        with pytest.raises(ServiceError, match=f"bad_request: .*{words}"):
            client.tick(SESSION, as_json({"observation": {"units": units, "gold": [1]}}))


CHOICES: Any = {
    "observation": {
        "kind": {"discrete": 4, "start": -1},
        "slots": [{"multi_discrete": [2, 3]}, {"shape": [1]}],
    },
    "action": {"discrete": 2},
}


@pytest.mark.parametrize("in_json", [True, False])
@pytest.mark.parametrize(
    ("kind", "slots", "words"),
    [
        (3, [1, 2], None),
        (4, [1, 2], "observation/kind: expected whole numbers from 0 to 3, got 4"),
        (-1, [1, 2], "observation/kind: expected whole numbers from 0 to 3, got -1"),
        (0, [1, 3], r"observation/slots\[0\]: expected whole numbers from 0 to 2, got 3"),
    ],
)
def test_a_category_has_its_values_alone(
    in_json: bool, kind: int, slots: list[int], words: str | None
) -> None:
    whole = np.dtype("i8")
    spec = {
        "kind": ArraySpec(whole, ()),
        "slots": (ArraySpec(whole, (2,)), ArraySpec(np.dtype("f4"), (1,))),
    }
    factory = PolicyActor.factory(Coin(spec), PolicyConfig(spaces=CHOICES))
    lists = {"observation": {"kind": kind, "slots": [slots, [0.5]]}}
    seen = {"kind": np.array(kind), "slots": [np.array(slots), np.array([0.5], "f4")]}
    body = as_json(lists) if in_json else codec.encode({"observation": seen})
    with closing(ServerThread(factory)) as server, Client(server.addresses[0]) as client:
        client.start(SESSION, b"")
        if words is None:
            client.tick(SESSION, body)
            return
        with pytest.raises(ServiceError, match=f"bad_request: {words}"):
            client.tick(SESSION, body)
        with pytest.raises(ServiceError, match=f"bad_request: {words}"):
            client.end(SESSION, body)


@pytest.mark.parametrize("form", [as_json, codec.encode], ids=["json", "codec"])
@pytest.mark.parametrize(
    ("told", "words"),
    [
        ({}, None),
        ({"shape": [4], "low": -1.0, "high": 1.0}, None),
        ({"shape": [5]}, r"bad_spaces: observation: policy has .*4.*start of .* has .*5"),
        ({"shape": [-5]}, "bad_spaces: start of session 'game-1'"),
    ],
)
def test_a_served_policy_compares_the_spaces_that_a_start_tells(
    form: Callable[[Any], bytes], told: Any, words: str | None
) -> None:
    spaces = {"observation": {"shape": [4]}, "action": {"discrete": 2}}
    factory = PolicyActor.from_export({"spaces": spaces}, Coin(PLAIN))
    body = form({"spaces": spaces | {"observation": told}} if told else {"match": 7})
    with closing(ServerThread(factory)) as server, Client(server.addresses[0]) as client:
        for session in ("game-1", "game-2"):  # what was agreed on is remembered
            if words is None:
                client.start(session, body)
                client.tick(
                    session,
                    form(
                        {"observation": [0.0] * 4}
                        if form is as_json
                        else {"observation": np.zeros(4, "f4")}
                    ),
                )
            elif session == "game-1":
                with pytest.raises(ServiceError, match=words):
                    client.start(session, body)


def test_a_recorded_session_in_json_reads_as_one_in_the_codec(tmp_path: Path) -> None:
    bodies = []
    for folder, form, observation in (
        (tmp_path / "codec", codec.encode, np.array([0.1, 2, 3, 4], "f4")),
        (tmp_path / "json", as_json, [0.1, 2, 3, 4]),
    ):
        recorder = Recorder(folder, every=1)
        actors = recorder.record(PolicyActor.factory(Coin(PLAIN), PolicyConfig()))
        with InProcessClient(actors) as client:
            client.start(SESSION, form({}))
            client.tick(SESSION, form({"observation": observation}))
            client.end(SESSION, form({"reward": 1.0, "terminated": True}))
        recorder.close()
        (file,) = recorder.files()
        bodies.append([(one.body, one.reply) for one in read_episode(file).requests])
    assert bodies[0] == bodies[1]


class Doubler(Agent):
    async def on_tick(self, state: Any) -> Any:
        return state.observation["x"] * 2


def test_agents_see_arrays_and_answer_in_json() -> None:
    with InProcessClient(lambda _: AgentActor({"doubler": Doubler()})) as client:
        client.start(SESSION, JsonBody(b"{}"))
        assert client.tick(SESSION, JsonBody(b'{"x": [1, 2.5]}')) == b'{"doubler":[2.0,5.0]}'
        assert client.tick(SESSION, JsonBody(b'{"x": 3}')) == b'{"doubler":6}'
        with pytest.raises(ServiceError, match="bad_request: decode: expected JSON"):
            client.tick(SESSION, JsonBody(b'{"x": 3'))
        reply = client.tick(SESSION, codec.encode({"x": 3}))
        assert codec.decode(reply) == {"doubler": 6}
