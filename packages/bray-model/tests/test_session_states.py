"""The state that a model keeps for its sessions, compared with torch's LSTM stepped by hand."""

import asyncio
import json
import pickle
from dataclasses import replace

import numpy as np
import pytest
import torch

from bray_core import nested
from bray_core.errors import CapacityError, ConfigError, ExportError, SpecError
from bray_model import Manifest, Model, ModelConfig, Signature
from bray_model.batching.executor import NonFiniteError
from bray_model.export_files.manifest import FORMAT

STATE = {"inputs[1]": "outputs/state"}


class Recurrent(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.cell = torch.nn.LSTM(4, 8, batch_first=True)
        self.head = torch.nn.Linear(8, 2)

    def forward(self, x, state):
        given = tuple(leaf.transpose(0, 1).contiguous() for leaf in state)
        out, after = self.cell(x[:, None], given)
        return {"logits": self.head(out[:, 0]), "state": [leaf.transpose(0, 1) for leaf in after]}


class Counter(torch.nn.Module):
    """Counts in its state; refuses negative inputs; NaN goes in and out."""

    def __init__(self):
        super().__init__()
        self.step = torch.nn.Parameter(torch.ones(()))

    def forward(self, inputs):
        if not torch.jit.is_tracing() and bool((inputs["x"] < 0).any()):
            raise IndexError("negative")
        count = inputs["memory"]["count"] + self.step
        return {"count": count, "x": inputs["x"]}


EXAMPLE = (np.zeros((1, 4), np.float32), (np.zeros((1, 1, 8), np.float32),) * 2)
COUNTER = {"x": np.zeros((1, 2), np.float32), "memory": {"count": np.zeros((1,), np.float32)}}
COUNTS = {"inputs[0]/memory/count": "outputs/count"}
X = {"x": np.ones(2, np.float32)}


@pytest.fixture(scope="module")
def module():
    torch.manual_seed(0)
    return Recurrent()


@pytest.fixture(scope="module", params=["torch", "export"])
def model(request, module, tmp_path_factory):
    """The same network in both backends."""
    folder = tmp_path_factory.mktemp("recurrent") / "export"
    with Model(module, EXAMPLE, state=STATE) as origin:
        if request.param == "torch":
            yield origin
            return
        origin.export(folder)
    with Model(folder) as exported:
        yield exported


@pytest.fixture
def counter(request):
    config = ModelConfig(**getattr(request, "param", {}))
    with Model(Counter(), COUNTER, state=COUNTS, config=config) as model:
        yield model


def by_hand(module, sequence):
    """Logits `[T, 2]` of torch's own LSTM over the whole sequence `[T, 4]`."""
    with torch.inference_mode():
        out, _ = module.cell(torch.from_numpy(sequence)[None])
        return module.head(out[0]).numpy()


def sequences(number, steps):
    rng = np.random.default_rng(0)
    return rng.standard_normal((number, steps, 4)).astype(np.float32)


async def test_a_session_is_torchs_lstm(model, module):
    (sequence,) = sequences(1, 20)
    for session in ("first", "again"):
        logits = [(await model.forward(x, session=session))["logits"] for x in sequence]
        np.testing.assert_allclose(logits, by_hand(module, sequence), rtol=1e-4, atol=1e-5)
        model.end_session(session)
    at_once = [model(x, session="at once")["logits"] for x in sequence]
    np.testing.assert_allclose(at_once, by_hand(module, sequence), rtol=1e-4, atol=1e-5)


async def test_sessions_that_share_batches_are_each_as_alone(model, module):
    """Fifty sessions at their own pace, of other lengths."""
    given = sequences(50, 15)

    async def play(i):
        logits = []
        for x in given[i, : 5 + i % 10]:
            for _ in range(i % 3):
                await asyncio.sleep(0)
            logits.append((await model.infer(x, session=f"s{i}")).outputs["logits"])
        return logits

    played = await asyncio.gather(*(play(i) for i in range(50)))
    for i, logits in enumerate(played):
        expected = by_hand(module, given[i, : len(logits)])
        np.testing.assert_allclose(logits, expected, rtol=1e-4, atol=1e-5)


def test_outputs_are_as_usual_and_the_state_may_still_be_given(model):
    x, zeros = sequences(1, 1)[0, 0], nested.map(lambda leaf: leaf[0], EXAMPLE[1])
    kept, given = model(x, session="usual"), model(x, zeros)
    nested.map(np.testing.assert_array_equal, kept, given)
    kept["state"][0][:] = 99  # the caller's to write to
    again = model(x, session="usual")
    nested.map(np.testing.assert_array_equal, again, model(x, tuple(given["state"])))
    model.end_session("usual")


async def test_a_publish_keeps_the_state(counter):
    assert [counter(X, session="a")["count"] for _ in range(3)] == [1, 2, 3]
    counter.publish({"step": np.full((), 10.0, np.float32)})
    answer = await counter.infer(X, session="a")
    assert (answer.outputs["count"], answer.version) == (13, 1)
    counter.end_session("a")
    counter.end_session("a")
    assert counter(X, session="a")["count"] == 10


def test_clones_keep_sessions_of_their_own(counter):
    assert counter(X, session="a")["count"] == 1
    with counter.clone() as clone:
        assert [clone(X, session="a")["count"] for _ in range(2)] == [1, 2]
    assert counter(X, session="a")["count"] == 2


@pytest.mark.parametrize("counter", [{"reject_non_finite": True}], indirect=True)
async def test_a_failed_forward_leaves_the_state(counter):
    assert counter(X, session="a")["count"] == 1
    with pytest.raises(IndexError):
        await counter.infer({"x": -X["x"]}, session="a")
    with pytest.raises(NonFiniteError):
        await counter.infer({"x": np.array([np.nan, 0], np.float32)}, session="a")
    with pytest.raises(SpecError, match=r"inputs\[0\]/x: expected float32 \(2,\), got float32"):
        await counter.infer({"x": np.ones(3, np.float32)}, session="a")
    cancelled = asyncio.ensure_future(counter.infer(X, session="a"))
    await asyncio.sleep(0)
    cancelled.cancel()
    with pytest.raises(asyncio.CancelledError):
        await cancelled
    assert (await counter.infer(X, session="a")).outputs["count"] == 2


@pytest.mark.parametrize("counter", [{"max_wait_us": 5_000_000}], indirect=True)
async def test_one_request_of_a_session_at_a_time(counter):
    first = asyncio.ensure_future(counter.infer(X, session="a"))
    await asyncio.sleep(0)
    for use in (lambda: counter(X, session="a"), lambda: counter(X, session="a")):
        with pytest.raises(CapacityError, match=r"session 'a': has a request under way"):
            use()
    assert counter(X, session="b")["count"] == 1
    counter.end_session("a")  # and begins anew, whatever is under way
    assert counter(X, session="a")["count"] == 1
    first.cancel()
    with pytest.raises(asyncio.CancelledError):
        await first
    assert counter(X, session="a")["count"] == 2


@pytest.mark.parametrize("counter", [{"max_sessions": 2, "session_idle_s": 10}], indirect=True)
def test_sessions_are_bounded_and_idle_ones_are_dropped(counter, monkeypatch):
    now_s = 100.0
    monkeypatch.setattr("bray_model.batching.session_states.time.monotonic", lambda: now_s)
    assert [counter(X, session=name)["count"] for name in "aab"] == [1, 2, 1]
    now_s += 9
    with pytest.raises(CapacityError, match=r"session 'c': model 'model' keeps max_sessions=2"):
        counter(X, session="c")
    assert counter(X, session="a")["count"] == 3
    now_s += 2  # b was idle for 11 s, a for 2 s
    assert counter(X, session="c")["count"] == 1
    assert counter(X, session="a")["count"] == 4
    counter.end_session("a")
    assert counter(X, session="b")["count"] == 1


def test_a_single_session_that_was_idle_begins_anew(counter, monkeypatch):
    now_s = 0.0
    monkeypatch.setattr("bray_model.batching.session_states.time.monotonic", lambda: now_s)
    assert counter(X, session="a")["count"] == 1
    now_s = counter.config.session_idle_s + 1
    assert counter(X, session="a")["count"] == 1


def test_what_a_session_cannot_ask(counter):
    for session, batch, message in (
        (7, False, "session: expected a name, got 7"),
        ("a", True, "session='a': a session asks one row at a time: no batch"),
    ):
        with pytest.raises(ConfigError, match=message):
            counter(X, session=session, batch=batch)
    with pytest.raises(SpecError, match=r"inputs\[0\]/memory/count: unexpected"):
        counter({**X, "memory": {"count": np.zeros((), np.float32)}}, session="a")
    with (
        Model(torch.nn.Linear(2, 2), np.zeros((1, 2), np.float32)) as stateless,
        pytest.raises(ConfigError, match=r"session='a': model 'model' has no state: make it with"),
    ):
        stateless(X["x"], session="a")


@pytest.mark.parametrize(
    ("state", "message"),
    [
        ({"inputs[2]": "outputs/state"}, r"state: no inputs at 'inputs\[2\]'; there are \['inp"),
        ({"inputs[1": "outputs/state"}, r"state: no inputs at 'inputs\[1'"),
        ({"inputs[1]": "outputs/sta"}, r"state: no outputs at 'outputs/sta'; there are \['out"),
        ({"inputs[1]": 3}, r"state: no outputs at 3"),
        (
            {"inputs[1]": "outputs/logits"},
            r"inputs\[1\] and outputs/logits: expected the same structure, got the leaves "
            r"\['inputs\[1\]\[0\]', 'inputs\[1\]\[1\]'\] and \['outputs/logits'\]",
        ),
        (
            {"inputs[1][0]": "outputs/logits"},
            r"inputs\[1\]\[0\] is float32 \(1, 8\) and outputs/logits is float32 \(2,\)",
        ),
        (
            {"inputs[1]": "outputs/state", "inputs[1][0]": "outputs/state[1]"},
            r"state: inputs\[1\]\[0\]: named twice",
        ),
        ([("inputs[1]", "outputs/state")], r"state: expected input → output, got \["),
    ],
)
def test_a_state_that_does_not_match_names_both(module, state, message):
    with pytest.raises(SpecError, match=message):
        Model(module, EXAMPLE, state=state)


def test_something_must_be_left_to_give():
    class Step(torch.nn.Module):
        def forward(self, x):
            return x + 1

    with pytest.raises(SpecError, match=r"expected an input besides the state"):
        Model(Step(), np.zeros((1, 2), np.float32), state={"inputs[0]": "outputs"})


def test_the_state_may_come_first_and_be_a_single_leaf():
    class Swapped(torch.nn.Module):
        def forward(self, total, x):
            return total + x, {"total": total + x}

    example = (np.zeros((1, 2), np.float32),) * 2
    with Model(Swapped(), example, state={"inputs[0]": "outputs[1]/total"}) as model:
        one = np.ones(2, np.float32)
        assert [model(one * k, session="a")[0].tolist() for k in (1, 2, 3)] == [
            [1, 1],
            [3, 3],
            [6, 6],
        ]


def test_the_signature_and_the_manifest_carry_it(module, tmp_path):
    with Model(module, EXAMPLE, state=STATE) as model:
        signature = model.signature
        model.export(tmp_path)
    assert signature.state == STATE
    assert pickle.loads(pickle.dumps(signature)) == signature
    assert replace(signature, state={}) != signature
    manifest = Manifest.read(tmp_path)
    assert manifest.signature.state == STATE
    assert manifest.signature.state_leaves == signature.state_leaves == ((1, 1), (2, 2))


def test_an_older_manifest_has_none_and_a_broken_one_is_told(module, tmp_path):
    with Model(module, EXAMPLE) as model:
        model.export(tmp_path)
    file = tmp_path / "manifest.json"
    content = json.loads(file.read_text())
    assert content["format"] == FORMAT
    assert "state" not in content
    assert Manifest.read(tmp_path).signature.state == {}
    with Model(tmp_path, state=STATE) as late:
        assert late(EXAMPLE[0][0], session="a")["logits"].shape == (2,)
    for broken in (["inputs[1]"], {"inputs[1]": "outputs/logits"}, {"inputs[1]": None}, None):
        file.write_text(json.dumps({**content, "state": broken}))
        with pytest.raises(ExportError, match=r"manifest.json: state: "):
            Manifest.read(tmp_path)


def test_signatures_without_state_are_equal_as_before():
    spec = nested.spec(np.zeros(2, np.float32))
    assert Signature((spec,), spec) == Signature((spec,), spec, {})
