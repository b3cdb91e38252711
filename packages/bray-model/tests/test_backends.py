"""What computes, and where: chosen by the config, never something else in silence."""

import asyncio

import numpy as np
import onnxruntime
import pytest
import torch

from bray_core import nested
from bray_core.errors import ConfigError, SpecError
from bray_model import Model, ModelConfig


def counted():
    """How many graphs torch has compiled so far in this process."""
    return torch._dynamo.utils.counters["stats"]["unique_graphs"]


@pytest.fixture
def one_process():
    """Let torch compile in this process: its helpers would outlive the test."""
    import torch._inductor.config

    with torch._inductor.config.patch(compile_threads=1):
        yield


@pytest.mark.slow  # the C++ compiler takes 13 s; the trainer's own compile test is short
def test_a_compiled_module_answers_as_it_does_eagerly_and_is_compiled_twice(
    policy, observations, one_process
):
    before = counted()
    with (
        Model(policy, observations(1)) as eager,
        Model(policy, observations(1), config=ModelConfig(compile=True)) as model,
    ):
        compiled = counted()
        assert compiled > before
        weights = eager.weights()[1]
        for factor in (1.0, 0.5, -2.0):
            changed = {
                name: array * np.asarray(factor, array.dtype) for name, array in weights.items()
            }
            assert model.publish(changed) == eager.publish(changed)
            with model.clone() as clone:
                for rows in (1, 2, 7, 64, 100):
                    inputs = observations(rows, seed=rows)
                    want = eager(*inputs, batch=True)
                    for one in (model, clone):
                        got = asyncio.run(one.forward(*inputs, batch=True))  # in its own thread
                        nested.map(
                            lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5),
                            got,
                            want,
                        )
        assert counted() == compiled, "once for one row, once for more; not for a publish or clone"


@pytest.mark.long
def test_a_compiled_model_is_exported_as_any_other(policy, observations, tmp_path, one_process):
    with Model(policy, observations(1), config=ModelConfig(compile=True)) as model:
        assert model.export(tmp_path / "export").max_rel_error < 1e-3


BF16 = ModelConfig(precision="bf16")


class Wide(torch.nn.Module):
    """Sums of many products, which it gives back in float32, unless told otherwise."""

    def __init__(self, is_kept=True):
        super().__init__()
        torch.manual_seed(0)
        self.body = torch.nn.Sequential(
            torch.nn.Linear(64, 256), torch.nn.Tanh(), torch.nn.Linear(256, 8)
        )
        self.is_kept = is_kept

    def forward(self, x):
        return self.body(x).float() if self.is_kept else self.body(x)


def test_bf16_is_close_to_fp32_and_not_it():
    x = np.random.default_rng(0).standard_normal((32, 64)).astype(np.float32)
    with Model(Wide(), x[:1]) as exact, Model(Wide(), x[:1], config=BF16) as model:
        wanted, got = exact(x, batch=True), model(x, batch=True)
        assert got.dtype == np.float32
        # bfloat16 has 8 bits of digits: 0.4 % a rounding, of sums of up to 256 products.
        np.testing.assert_allclose(got, wanted, atol=0.02)
        assert np.abs(got - wanted).max() > 1e-5, "it was computed in bfloat16"
        model.publish({name: 2 * array for name, array in model.weights()[1].items()})
        with model.clone() as clone:
            assert np.array_equal(clone(x, batch=True), model(x, batch=True)), "clones too"


def test_an_output_left_in_bf16_is_refused():
    with pytest.raises(SpecError, match="bfloat16"):
        Model(Wide(is_kept=False), np.zeros((1, 64), np.float32), config=BF16)


def test_what_computes_in_bf16_is_exported_in_fp32(tmp_path):
    with Model(Wide(), np.zeros((1, 64), np.float32), config=BF16) as model:
        assert model.export(tmp_path / "export").max_rel_error < 1e-3


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"backend": "int8"}, r"backend='int8': only for an export, got a torch module: .*export"),
        ({"backend": "tensorrt", "device": "cuda"}, "backend='tensorrt': only for an export"),
    ],
)
def test_a_module_has_no_backend_of_an_export(policy, observations, settings, message):
    with pytest.raises(ConfigError, match=message):
        Model(policy, observations(1), config=ModelConfig(**settings))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (
            {"precision": "bf16"},
            r"precision: only of a torch module; of an export the backend says",
        ),
        ({"compile": True}, "compile: only a torch module is compiled, not an export"),
        ({"backend": "int8"}, r"has no int8.onnx: add it with `bray quantize /.* --kind int8`"),
    ],
)
def test_an_export_has_only_what_it_holds(exported, settings, message):
    with pytest.raises(ConfigError, match=message):
        Model(exported[0], config=ModelConfig(**settings))


@pytest.mark.skipif(torch.cuda.is_available(), reason="torch can use the GPU of this machine")
def test_torch_without_a_gpu_says_so(policy, observations):
    with pytest.raises(ConfigError, match=r"device='cuda': torch \S+ finds no GPU that it can use"):
        Model(policy, observations(1), config=ModelConfig(device="cuda"))


CUDA = ModelConfig(device="cuda")


def test_onnxruntime_without_cuda_names_what_it_has(exported, monkeypatch):
    monkeypatch.setattr(onnxruntime, "get_available_providers", lambda: ["CPUExecutionProvider"])
    message = r"device='cuda': onnxruntime \S+ here has CPUExecutionProvider: install onnxruntime-g"
    with pytest.raises(ConfigError, match=message):
        Model(exported[0], config=CUDA)


class FallsBack:
    """A session as onnxruntime makes it where the CUDA libraries are missing: on the CPU."""

    made = onnxruntime.InferenceSession

    def __new__(cls, graph, options, providers):
        assert providers[0] == "CUDAExecutionProvider"
        return cls.made(graph, options, providers=["CPUExecutionProvider"])


def test_onnxruntime_that_falls_back_to_the_cpu_is_refused(exported, monkeypatch):
    providers = ["CUDAExecutionProvider", "CPUExecutionProvider"]
    monkeypatch.setattr(onnxruntime, "get_available_providers", lambda: providers)
    monkeypatch.setattr(onnxruntime, "InferenceSession", FallsBack)
    with pytest.raises(ConfigError, match=r"here has CPUExecutionProvider: install .*the NVIDIA d"):
        Model(exported[0], config=CUDA)


@pytest.mark.gpu
def test_torch_on_the_gpu_answers_as_on_the_cpu(policy, observations, tmp_path):
    with (
        Model(policy, observations(1)) as wanted,
        Model(policy, observations(1), config=CUDA) as model,
    ):
        assert next(model._runtime.definition.engine.module.parameters()).is_cuda
        check_like(model, wanted, observations)
        model.export(tmp_path / "export")


@pytest.mark.gpu
@pytest.mark.skipif(
    "CUDAExecutionProvider" not in onnxruntime.get_available_providers(),
    reason="this onnxruntime is not onnxruntime-gpu",
)
def test_onnxruntime_on_the_gpu_answers_as_on_the_cpu(exported, observations):
    with Model(exported[0]) as wanted, Model(exported[0], config=CUDA) as model:
        check_like(model, wanted, observations)


def check_like(model, wanted, observations):
    """Compare before and after a publish, at several sizes."""
    weights = wanted.weights()[1]
    for factor in (1.0, 0.5):
        changed = {name: array * np.asarray(factor, array.dtype) for name, array in weights.items()}
        assert model.publish(changed) == wanted.publish(changed)
        for rows in (1, 7, 64):
            inputs = observations(rows)
            got, want = model(*inputs, batch=True), wanted(*inputs, batch=True)
            for path in ("logits", "heads"):
                nested.map(
                    lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-3),
                    got[path],
                    want[path],
                )
