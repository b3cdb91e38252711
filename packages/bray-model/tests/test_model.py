import asyncio
import json
import threading

import numpy as np
import pytest
import torch

from bray_core import nested, protocols
from bray_core.errors import (
    CapacityError,
    ClosedError,
    ConfigError,
    DeadlineError,
    ExportError,
    MissingExtraError,
    SpecError,
    VersionNotFoundError,
)
from bray_core.process.event_loop import EventLoopThread
from bray_model import Model, ModelConfig

ROW = np.ones(2, np.float32)


class Scale(torch.nn.Module):
    """Answers x times a weight, and the weight three times over, to show mixed versions."""

    def __init__(self):
        super().__init__()
        self.a = torch.nn.Parameter(torch.zeros(()))
        self.b = torch.nn.Parameter(torch.zeros(1000))
        self.c = torch.nn.Parameter(torch.zeros(()))

    def forward(self, x):
        ones = torch.ones(x.shape[0])
        seen = torch.stack([ones * self.a, ones * self.b[0], ones * self.b[-1], ones * self.c], 1)
        return {"y": x * self.a, "seen": seen}


def scale(value):
    return {
        "a": np.float32(value),
        "b": np.full(1000, value, np.float32),
        "c": np.full((), value, np.float32),
    }


@pytest.fixture
def model(tmp_path):
    with Model(Scale(), ROW[None], name="demo", directory=tmp_path) as model:
        yield model


def test_is_a_protocols_model(model):
    assert isinstance(model, protocols.ModelProtocol)
    assert repr(model) == "Model('demo', version=0)"


async def test_forward_call_and_torch_agree(policy, observations, row):
    inputs = observations(10)
    with Model(policy, observations(1)) as model:
        policy.eval()
        with torch.inference_mode():
            expected = policy(
                {k: torch.from_numpy(v) for k, v in inputs[0].items()},
                (torch.from_numpy(inputs[1][0]),),
            )
        expected = nested.map(lambda tensor: tensor.detach().numpy(), expected)
        batched = await model.forward(*inputs, batch=True)
        single = await asyncio.gather(*(model.forward(*row(inputs, i)) for i in range(10)))
        for got in (batched, nested.stack(single), model(*inputs, batch=True)):
            assert nested.spec(got) == nested.spec(expected)
            nested.map(
                lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6), got, expected
            )
        one = model(*row(inputs, 3))
        np.testing.assert_allclose(one["logits"], expected["logits"][3], rtol=1e-5, atol=1e-6)


async def test_the_module_is_copied(model):
    module = Scale()
    with Model(module, ROW[None]) as copy:
        with torch.no_grad():
            module.a.fill_(7.0)
        assert (await copy.forward(ROW))["y"].tolist() == [0.0, 0.0]
        assert module.training
        assert module.a.requires_grad


async def test_publish_takes_effect_and_copies(model):
    weights = scale(3)
    assert model.publish(weights) == model.version == 1
    weights["b"][:] = 99
    answer = await model.infer(ROW)
    assert answer.version == 1
    assert answer.outputs["seen"].tolist() == [3.0] * 4
    assert model(ROW)["y"].tolist() == [3.0, 3.0]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda w: w.pop("a"), "weights/a: missing"),
        (lambda w: w.update(d=w["a"]), "weights/d: unexpected"),
        (
            lambda w: w.update(b=w["b"][:10]),
            r"weights/b: expected float32 \(1000,\), got .*\(10,\)",
        ),
        (lambda w: w.update(c=np.float64(1)), r"weights/c: expected float32 \(\), got float64"),
        (lambda w: w.update(b=[1.0]), r"weights/b"),
        (lambda w: w.update(b=1.0), r"weights/b: expected float32 \(1000,\), got float"),
    ],
)
def test_publish_names_the_parameter_that_does_not_fit(model, change, message):
    weights = scale(1)
    change(weights)
    with pytest.raises(SpecError, match=message):
        model.publish(weights)
    assert model.version == 0


def test_publish_refuses_what_is_no_mapping(model):
    with pytest.raises(SpecError, match=r"weights: expected name → array, got list"):
        model.publish([np.zeros(3)])


def test_publish_under_a_given_version_must_be_newer(model):
    assert model.publish(scale(1), version=5) == 5
    assert model.publish(scale(1)) == 6
    with pytest.raises(ConfigError, match=r"version=6: expected more than 6, the newest so far"):
        model.publish(scale(1), version=6)


@pytest.mark.parametrize("inline", [False, True])
def test_publishing_under_load_never_mixes_versions(inline):
    """Two loops ask while a thread publishes; each answer shows one version, its own."""
    config = ModelConfig(max_batch_size=8, inline_below_us=10**9 if inline else 0)
    model = Model(Scale(), ROW[None], config=config)
    done = threading.Event()
    answered = []

    async def ask(batch):
        while not done.is_set():
            x = np.ones((20, 2), np.float32) if batch else ROW
            answer = await model.infer(x, batch=batch)
            seen = np.unique(answer.outputs["seen"])
            assert seen.tolist() == [float(answer.version)]
            answered.append(answer.version)
            await asyncio.sleep(0)

    async def many():
        await asyncio.gather(*(ask(batch=i == 0) for i in range(10)))

    loops = [EventLoopThread("one"), EventLoopThread("other")]
    futures = [loop.submit(many()) for loop in loops]
    version = 0
    while len(answered) < 5000 and not any(future.done() for future in futures):
        version += 1
        assert model.publish(scale(version)) == version
        assert model(ROW)["seen"][0] == version
    done.set()
    for loop, future in zip(loops, futures, strict=True):
        future.result(30)
        loop.stop()
    assert len(set(answered)) > 20
    model.close()


async def test_wait_version_wakes_on_publish_from_another_thread(model):
    waiting = [asyncio.ensure_future(model.wait_version(v, 30.0)) for v in (1, 2, 2)]
    await asyncio.sleep(0)
    await asyncio.to_thread(model.publish, scale(1))
    assert await waiting[0] == 1
    assert not waiting[1].done()
    await asyncio.to_thread(model.publish, scale(2))
    assert await asyncio.gather(*waiting[1:]) == [2, 2]
    assert await model.wait_version(1) == 2


async def test_wait_version_has_a_deadline(model):
    with pytest.raises(
        DeadlineError, match=r"version 3: not published within 0.01 s; the newest is 0"
    ):
        await model.wait_version(3, 0.01)


async def test_close_fails_waiters_and_further_use():
    model = Model(Scale(), ROW[None], config=ModelConfig(max_wait_us=60_000_000))
    waiting = [
        asyncio.ensure_future(model.wait_version(1)),
        asyncio.ensure_future(model.infer(ROW)),
    ]
    await asyncio.sleep(0)
    model.close()
    model.close()
    results = await asyncio.wait_for(asyncio.gather(*waiting, return_exceptions=True), 10)
    assert [type(result) for result in results] == [ClosedError, ClosedError]
    for use in (model.infer(ROW), model.wait_version(1)):
        with pytest.raises(ClosedError, match=r"model 'model': closed"):
            await use
    for use in (lambda: model(ROW), lambda: model.publish(scale(1)), model.clone):
        with pytest.raises(ClosedError):
            use()


async def test_bad_requests_fail_alone(model):
    results = await asyncio.gather(
        model.forward(ROW),
        model.forward(np.ones(3, np.float32)),
        model.forward(),
        model.forward(ROW, ROW),
        model.forward(np.ones((2, 2), np.float32)),
        model.forward(np.ones((0, 2), np.float32), batch=True),
        return_exceptions=True,
    )
    assert results[0]["y"].tolist() == [0.0, 0.0]
    messages = [str(result) for result in results[1:]]
    assert all(isinstance(result, SpecError) for result in results[1:])
    assert messages[0] == "inputs[0]: expected float32 (2,), got float32 (3,)"
    assert messages[1].startswith("inputs[0]: missing")
    assert messages[2].startswith("inputs[1]: unexpected")
    assert messages[3].endswith("for rows [B, ...] pass batch=True")
    assert messages[4] == "inputs[0]: expected at least one row, got a batch of 0"


async def test_an_error_of_the_module_reaches_the_callers():
    class Picky(torch.nn.Module):
        def forward(self, x):
            if bool((x > 5).any()):
                raise ValueError("more than 5")
            return x

    with Model(Picky(), ROW[None]) as model:
        with pytest.raises(ValueError, match=r"more than 5"):
            await model.forward(ROW * 6)
        assert (await model.forward(ROW)).tolist() == [1.0, 1.0]


async def test_the_queue_is_bounded():
    config = ModelConfig(max_batch_size=2, max_queue_rows=4)
    with (
        Model(Scale(), ROW[None], config=config) as model,
        pytest.raises(CapacityError, match=r"max_queue_rows=4"),
    ):
        await model.forward(np.ones((5, 2), np.float32), batch=True)


async def test_outputs_outlive_the_next_batch_and_the_next_weights():
    class Same(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.w = torch.nn.Parameter(torch.zeros(2))

        def forward(self, x):
            return {"x": x, "w": self.w.expand(x.shape[0], 2)}

    with Model(Same(), ROW[None]) as model:
        first = await model.forward(ROW)
        model.publish({"w": ROW * 9})
        await model.forward(ROW * 5)
        assert first["x"].tolist() == [1.0, 1.0]
        assert first["w"].tolist() == [0.0, 0.0]


def test_requests_of_several_loops_and_closed_loops(model):
    for _ in range(3):
        assert asyncio.run(model.forward(ROW))["y"].tolist() == [0.0, 0.0]
    assert len(model._batchers) == 1


def test_checkpoint_resume_and_load(model, tmp_path):
    model.publish(scale(1))
    model.checkpoint()
    model.publish(scale(2))
    file = model.checkpoint()
    assert file == tmp_path / "versions" / "2.safetensors"
    model.publish(scale(3))

    with Model(Scale(), ROW[None], directory=tmp_path) as resumed:
        assert resumed.version == 2
        assert resumed(ROW)["seen"].tolist() == [2.0] * 4
        assert resumed.load(1) == resumed.version == 1
        assert resumed(ROW)["seen"].tolist() == [1.0] * 4
        assert resumed.publish(scale(7)) == 3
        with pytest.raises(VersionNotFoundError, match=r"version 9: not in .*; it has \[1, 2\]"):
            resumed.load(9)


def test_versions_of_another_module_are_refused(model, tmp_path):
    model.checkpoint()
    with pytest.raises(
        SpecError, match=r"version 0 in .*versions is of another module: weights/.*use another dir"
    ):
        Model(torch.nn.Linear(2, 1), ROW[None], directory=tmp_path)


def test_without_directory_there_is_no_checkpoint():
    with Model(Scale(), ROW[None]) as model:
        assert model.checkpoint() is None
        for use in (model.load, model.pin):
            with pytest.raises(ConfigError, match=r"model 'model': has no directory for versions"):
                use(0)


def test_a_clone_answers_with_its_own_version(model):
    model.publish(scale(1))
    model.checkpoint()
    model.publish(scale(2))
    with model.clone() as now, model.clone(1, "opponent") as before:
        model.publish(scale(5))
        assert (now.name, now.version) == ("demo-v2", 2)
        assert (before.name, before.version) == ("opponent", 1)
        assert now(ROW)["seen"].tolist() == [2.0] * 4
        assert before(ROW)["seen"].tolist() == [1.0] * 4
        assert before.publish(scale(8)) == 2
        assert model(ROW)["seen"].tolist() == [5.0] * 4
        with pytest.raises(VersionNotFoundError, match=r"version 1: not in .*demo-v2.* has none"):
            now.clone(1)
    with pytest.raises(VersionNotFoundError, match=r"version 4"):
        model.clone(4)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((3,), "module: expected a torch.nn.Module or the folder of an export, got int"),
        ((Scale(),), r"example_inputs: expected the module's inputs \[B, ...\], got None"),
        (("somewhere", ROW), "example_inputs: an export has its own signature: leave them out"),
    ],
)
def test_constructor_refuses(arguments, message):
    with pytest.raises(ConfigError, match=message):
        Model(*arguments)


def test_without_torch_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "bray_model.engines.torch_engine", None)
    with pytest.raises(MissingExtraError, match=r"install bray-model\[torch\]"):
        Model(Scale(), ROW[None])


async def test_an_export_answers_as_its_module(exported, observations, row, tmp_path):
    folder, _, origin = exported
    with Model(folder) as model:
        assert model.version == origin.version == 0
        got = await model.infer(*row(observations(4), 2))
        want = origin(*row(observations(4), 2))
        np.testing.assert_allclose(got.outputs["logits"], want["logits"], rtol=1e-3, atol=1e-4)
        with pytest.raises(ExportError, match=r"is an export itself: copy its folder"):
            model.export(tmp_path / "again")
        with model.clone() as clone:
            assert clone.version == 0
            assert clone(*row(observations(4), 2))["best"] == want["best"]


def test_fixed_weights_are_told(tmp_path):
    folder = tmp_path / "export"
    with Model(torch.nn.Linear(4, 2), np.zeros((1, 4), np.float32)) as origin:
        origin.export(folder)
    manifest = json.loads((folder / "manifest.json").read_text())
    for name in ("exchange.onnx", "weights.safetensors"):  # as where a graph holds its weights
        del manifest["files"][name]
        (folder / name).unlink()
    (folder / "manifest.json").write_text(json.dumps(manifest))
    with Model(folder) as model:
        for use in (lambda: model.publish({}), model.weights):
            with pytest.raises(ConfigError, match="the weights of this export are fixed"):
                use()
    with pytest.raises(ConfigError, match=r"directory: the weights of an export are fixed"):
        Model(folder, directory=tmp_path)
