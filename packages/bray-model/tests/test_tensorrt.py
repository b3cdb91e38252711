"""The TensorRT backend: for real on a GPU (`-m gpu`), its own logic on a stand-in everywhere.

The stand-in runs the plan with onnxruntime in the host's memory; it shows that buffers, cache and
refitting fit together, not that TensorRT does what its documentation says.
"""

import ctypes
import json
import sys
from types import SimpleNamespace

import numpy as np
import onnx
import onnxruntime
import pytest
import torch

from bray_core import nested
from bray_core.errors import ConfigError, ExportError, MissingExtraError, SpecError
from bray_model import Manifest, Model, ModelConfig
from bray_model.engines.tensorrt_plan import bake, cached_plan, plan_path

TENSORRT = ModelConfig(backend="tensorrt", device="cuda", max_batch_size=16)


class Network(SimpleNamespace):
    graph = b""


class Parser:
    num_errors = 1

    def __init__(self, target, logger):
        self.target = target

    def parse(self, graph):
        self.target.graph = graph
        return not graph.endswith(b"odd")

    def get_error(self, i):
        return SimpleNamespace(desc=lambda: "no such operator")


class Builder:
    plans = 0

    def __init__(self, logger):
        pass

    def create_network(self):
        return Network()

    def create_builder_config(self):
        ignore = lambda *args: None  # noqa: E731
        return SimpleNamespace(clear_flag=ignore, set_flag=ignore, add_optimization_profile=ignore)

    def create_optimization_profile(self):
        return SimpleNamespace(set_shape=lambda name, least, usual, most: None)

    def build_serialized_network(self, network, config):
        Builder.plans += 1
        return memoryview(network.graph)


class Engine:
    def __init__(self, plan):
        self.put(plan)

    def put(self, graph):
        self.session = onnxruntime.InferenceSession(graph)
        tensors = [*self.session.get_inputs(), *self.session.get_outputs()]
        self.types = {tensor.name: tensor.type for tensor in tensors}
        self.num_io_tensors = len(self.types)

    def get_tensor_name(self, i):
        return list(self.types)[i]

    def get_tensor_dtype(self, name):
        return self.types[name]

    def create_execution_context(self):
        return Context(self)


class Context:
    def __init__(self, engine):
        self.engine, self.shapes, self.addresses = engine, {}, {}

    def set_input_shape(self, name, shape):
        self.shapes[name] = shape

    def set_tensor_address(self, name, address):
        self.addresses[name] = address

    def execute_async_v3(self, stream):
        session = self.engine.session
        feed = {}
        for tensor in session.get_inputs():
            array = np.empty(self.shapes[tensor.name], nptype(tensor.type))
            ctypes.memmove(array.ctypes.data, self.addresses[tensor.name], array.nbytes)
            feed[tensor.name] = array
        names = [tensor.name for tensor in session.get_outputs()]
        for name, array in zip(names, session.run(names, feed), strict=True):
            array = np.ascontiguousarray(array)
            ctypes.memmove(self.addresses[name], array.ctypes.data, array.nbytes)
        return True


class Refitter:
    def __init__(self, engine, logger):
        self.engine = engine

    def refit_cuda_engine(self):
        self.engine.put(self.graph)
        return True


class ParserRefitter(Parser):
    def refit_from_bytes(self, graph):
        return self.parse(graph)


def nptype(name):
    return {"tensor(float)": np.float32, "tensor(bool)": np.bool_, "tensor(int64)": np.int64}[name]


FAKE = SimpleNamespace(
    __version__="0",
    Logger=type("Logger", (), {"ERROR": 0, "__init__": lambda self, level: None}),
    BuilderFlag=SimpleNamespace(TF32=0, REFIT=1),
    Builder=Builder,
    OnnxParser=Parser,
    Runtime=lambda logger: SimpleNamespace(
        deserialize_cuda_engine=lambda plan: Engine(plan) if plan else None
    ),
    Refitter=Refitter,
    OnnxParserRefitter=ParserRefitter,
    nptype=nptype,
)


@pytest.fixture
def stand_in(monkeypatch):
    """Put the stand-in where TensorRT and the GPU would be."""
    from bray_model.engines import cuda_memory

    ok = cuda_memory.cudart.cudaError_t.cudaSuccess
    blocks = {}

    def malloc(nbytes):
        block = ctypes.create_string_buffer(nbytes)
        blocks[ctypes.addressof(block)] = block
        return ok, ctypes.addressof(block)

    def copy(target, source, nbytes, kind, stream):
        ctypes.memmove(target, source, nbytes)
        return (ok,)

    done = {"cudaStreamSynchronize": lambda s: (ok,), "cudaStreamDestroy": lambda s: (ok,)}
    fakes = {
        **done,
        "cudaGetDeviceProperties": lambda i: (ok, SimpleNamespace(name=b"Stand-in")),
        "cudaStreamCreate": lambda: (ok, 7),
        "cudaMalloc": malloc,
        "cudaFree": lambda address: (blocks.pop(address) and ok,),
        "cudaMemcpyAsync": copy,
    }
    real = cuda_memory.cudart
    monkeypatch.setattr(cuda_memory, "cudart", SimpleNamespace(**{**vars(real), **fakes}))
    monkeypatch.setitem(sys.modules, "tensorrt", FAKE)
    monkeypatch.delitem(sys.modules, "bray_model.engines.tensorrt_engine", raising=False)
    Builder.plans = 0
    yield blocks
    sys.modules.pop("bray_model.engines.tensorrt_engine", None)


@pytest.fixture
def cache(tmp_path, monkeypatch):
    """The user's cache folder."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache/bray/tensorrt"


def check_like(model, wanted, inputs):
    got, want = model(*inputs, batch=True), wanted(*inputs, batch=True)
    assert nested.spec(got) == nested.spec(want)
    for path in ("logits", "heads"):
        nested.map(
            lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-4),
            got[path],
            want[path],
        )


@pytest.mark.parametrize(
    "where", ["stand_in", pytest.param("gpu", marks=pytest.mark.gpu)], ids=["stand-in", "gpu"]
)
def test_it_answers_as_onnxruntime_and_refits_what_is_published(
    exported, observations, cache, request, where
):
    if where == "stand_in":
        request.getfixturevalue(where)
    else:
        pytest.importorskip("tensorrt", reason="bray-model[tensorrt] is not installed")
    with Model(exported[0]) as wanted, Model(exported[0], config=TENSORRT) as model:
        (plan,) = cache.iterdir()
        made = plan.stat().st_mtime_ns
        weights = wanted.weights()[1]
        for factor in (1.0, 0.5, -2.0):
            changed = {
                name: array * np.asarray(factor, array.dtype) for name, array in weights.items()
            }
            assert model.publish(changed) == wanted.publish(changed)
            for rows in (1, 7, 16, 40):
                check_like(model, wanted, observations(rows))
        with model.clone() as clone:
            clone.publish(weights)
            check_like(model, wanted, observations(5))
        with pytest.raises(SpecError, match="inputs: expected 16 rows at most, got 17"):
            model._runtime.definition.engine.run(observations(17))
    assert [(entry, entry.stat().st_mtime_ns) for entry in cache.iterdir()] == [(plan, made)]
    with Model(exported[0]) as wanted, Model(exported[0], config=TENSORRT) as again:
        check_like(again, wanted, observations(16))  # not with the weights of the first plan
    assert [(entry, entry.stat().st_mtime_ns) for entry in cache.iterdir()] == [(plan, made)]


def test_a_plan_is_made_once_and_its_memory_freed(exported, observations, stand_in, cache):
    for _ in range(2):
        with Model(exported[0], config=TENSORRT) as model:
            model(*observations(3), batch=True)
        assert Builder.plans == 1
        assert len(stand_in) == 7
        del model
        assert not stand_in


def test_an_export_with_fixed_weights(export_copy, observations, stand_in, cache):
    path = export_copy / "manifest.json"
    content = json.loads(path.read_text())
    for name in ("exchange.onnx", "weights.safetensors"):
        del content["files"][name]
    path.write_text(json.dumps(content))
    with Model(export_copy) as wanted, Model(export_copy, config=TENSORRT) as model:
        check_like(model, wanted, observations(4))
        with pytest.raises(ConfigError, match="the weights of this export are fixed"):
            model.publish({})


def test_a_graph_that_it_cannot_read_is_told(exported, stand_in, cache, monkeypatch):
    monkeypatch.setattr("bray_model.engines.tensorrt_plan.bake", lambda exchange, weights: b"odd")
    with pytest.raises(ExportError, match="TensorRT cannot read the graph: no such operator"):
        Model(exported[0], config=TENSORRT)
    assert not cache.exists()


def test_a_broken_plan_in_the_cache_is_named(exported, stand_in, cache):
    with Model(exported[0], config=TENSORRT):
        (plan,) = cache.iterdir()
    plan.write_bytes(b"")
    with pytest.raises(ExportError, match=rf"{plan}: TensorRT does not take this plan: delete it"):
        Model(exported[0], config=TENSORRT)


def test_without_tensorrt_the_extra_is_named(exported, monkeypatch):
    monkeypatch.setitem(sys.modules, "tensorrt", None)
    monkeypatch.delitem(sys.modules, "bray_model.engines.tensorrt_engine", raising=False)
    message = r"backend='tensorrt' needs .*: install bray-model\[tensorrt\]"
    with pytest.raises(MissingExtraError, match=message):
        Model(exported[0], config=TENSORRT)


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a GPU")
def test_without_a_gpu_it_says_so():
    from bray_model.engines.cuda_memory import gpu_name

    with pytest.raises(ConfigError, match=r"device='cuda': no GPU that CUDA can use \(CUDA: .*\)"):
        gpu_name()


def test_a_baked_graph_computes_with_its_weights(exported, observations):
    folder, _, origin = exported
    exchange = Manifest.read(folder).read_file(folder, "exchange.onnx")
    weights = {
        name: array * np.asarray(0.5, array.dtype) for name, array in origin.weights()[1].items()
    }
    graph = bake(exchange, weights)
    onnx.checker.check_model(onnx.load_from_string(graph))
    session = onnxruntime.InferenceSession(graph)
    units, (extra,) = observations(5)
    feed = {
        "inputs[0]/units": units["units"],
        "inputs[0]/alive": units["alive"],
        "inputs[1][0]": extra,
    }
    (logits,) = session.run(["outputs/logits"], feed)
    with origin.clone() as clone:
        clone.publish(weights)
        want = clone(units, (extra,), batch=True)["logits"]
    np.testing.assert_allclose(logits, want, rtol=1e-4, atol=1e-5)


def test_plans_are_kept_apart_by_all_that_they_are_made_from(cache):
    made_from = {"graph": "a", "max_batch_size": 8, "tensorrt": "11", "gpu": "A"}
    others = [{**made_from, key: f"{value}x"} for key, value in made_from.items()]
    paths = {plan_path(each) for each in (made_from, *others)}
    assert len(paths) == 5
    assert {path.parent for path in paths} == {cache}


def test_a_plan_is_written_whole_and_read_again(cache):
    path = plan_path({"graph": "a"})
    assert cached_plan(path, lambda: b"plan") == b"plan"
    assert cached_plan(path, lambda: pytest.fail("made again")) == b"plan"
    assert [entry.name for entry in cache.iterdir()] == [path.name]


def test_a_cache_that_cannot_be_written_is_only_logged(cache, caplog):
    cache.parent.mkdir(parents=True)
    cache.write_text("a file where the folder belongs")
    path = cache / "x" / "y.plan"
    with pytest.raises(NotADirectoryError):
        path.read_bytes()
    assert cached_plan(path, lambda: b"plan") == b"plan"
    assert "cannot be written" in caplog.text
