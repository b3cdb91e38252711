"""The network of a model, opened from a torch module or from an export."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from bray_core.errors import ConfigError, ExportError, MissingExtraError, SpecError
from bray_core.nested import Nested
from bray_core.protocols import Weights
from bray_model.config import ModelConfig
from bray_model.engines.engine import Engine
from bray_model.export_files.graph_files import external_files
from bray_model.export_files.manifest import EXCHANGE, GRAPH, QUANTIZED, WEIGHTS, Manifest
from bray_model.signature import Signature
from bray_model.versions.weights import refuse_nan

if TYPE_CHECKING:
    import torch

    ModelSource: TypeAlias = torch.nn.Module | str | Path


@dataclass(frozen=True, kw_only=True, slots=True)
class NetworkDefinition:
    """A network with weights, apart from who calls it and when."""

    engine: Engine
    signature: Signature
    example: tuple[Nested, ...] | None
    """Inputs `[B, ...]` that the network is known to take; None for an export."""
    version: int = 0

    def copy(self, version: int, weights: Weights | None) -> NetworkDefinition:
        """Return a separate definition with other weights; None keeps them."""
        engine = self.engine.copy()
        if weights is not None:
            engine.load(weights)
        return replace(self, engine=engine, version=version)


def open_definition(
    source: ModelSource, example_inputs: Nested | None, config: ModelConfig | None = None
) -> NetworkDefinition:
    """Open a torch module, or the folder of an export, with the backend of the config.

    Raises:
        ConfigError: the source is neither, the example inputs are missing or needless, or the
            backend or device is not for it or not to be had here.
        ExportError: the export is broken.
        MissingExtraError: a module without torch installed, or TensorRT without tensorrt.
        SpecError: the example inputs do not fit the module.
    """
    config = config or ModelConfig()
    if not isinstance(source, str | Path):
        return _open_module(source, example_inputs, config)
    if example_inputs is not None:
        raise ConfigError("example_inputs: an export has its own signature: leave them out")
    if config.compile:
        raise ConfigError("compile: only a torch module is compiled, not an export: leave it out")
    if config.precision != "fp32":
        raise ConfigError(
            "precision: only of a torch module; of an export the backend says it, such as "
            "backend='float16'"
        )
    path = Path(source)
    manifest = Manifest.read(path)
    engine = _open_export(path, manifest, config)
    return NetworkDefinition(
        engine=engine, signature=manifest.signature, example=None, version=manifest.version
    )


def _open_export(path: Path, manifest: Manifest, config: ModelConfig) -> Engine:
    if config.backend in QUANTIZED:
        return _open_quantized(path, manifest, config)
    graph = manifest.read_graph(path, GRAPH)
    exchange, weights = None, None
    if EXCHANGE in manifest.files:
        exchange = manifest.read_graph(path, EXCHANGE)
        weights = read_weights(path, manifest)
    if config.backend == "tensorrt":
        try:
            from bray_model.engines.tensorrt_engine import TensorRTEngine
        except ImportError as error:
            raise MissingExtraError("backend='tensorrt'", "bray-model", "tensorrt") from error
        for file, data in ((GRAPH, graph), (EXCHANGE, exchange or b"")):
            if external_files(data, file):
                raise ExportError(
                    f"{path / file}: keeps data in other files, which backend='tensorrt' does not "
                    "read here: take backend='auto'"
                )
        return TensorRTEngine(graph, manifest.signature, exchange, weights, config.max_batch_size)
    from bray_model.engines.onnx_engine import OnnxEngine

    return OnnxEngine(
        graph,
        manifest.signature,
        exchange,
        weights,
        config.num_threads,
        device=config.device,
        folder=path,
    )


def _open_quantized(path: Path, manifest: Manifest, config: ModelConfig) -> Engine:
    file = QUANTIZED[config.backend]
    if file not in manifest.files:
        raise ConfigError(
            f"backend={config.backend!r}: {path} has no {file}: add it with "
            f"`bray quantize {path} --kind {config.backend}`"
        )
    from bray_model.engines.onnx_engine import OnnxEngine

    return OnnxEngine(
        manifest.read_graph(path, file),
        manifest.signature,
        num_threads=config.num_threads,
        device=config.device,
        file=file,
        folder=path,
    )


def read_weights(path: Path, manifest: Manifest) -> Weights:
    """Read the weights that an export holds beside its graphs.

    Raises:
        ExportError: The file of the weights is absent or broken, or holds NaN.
    """
    import safetensors.numpy

    try:
        weights: Weights = safetensors.numpy.load(manifest.read_file(path, WEIGHTS))
    except safetensors.SafetensorError as error:
        raise ExportError(f"{path / WEIGHTS}: not a safetensors file ({error})") from error
    try:
        refuse_nan(weights)
    except SpecError as error:
        raise ExportError(f"{path / WEIGHTS}: {error}") from None
    return weights


def _open_module(
    module: Any, example_inputs: Nested | None, config: ModelConfig
) -> NetworkDefinition:
    try:
        import torch

        from bray_model.engines.torch_engine import TorchEngine, as_arrays
    except ImportError as error:
        raise MissingExtraError("a Model of a torch module", "bray-model", "torch") from error
    if not isinstance(module, torch.nn.Module):
        raise ConfigError(
            "module: expected a torch.nn.Module or the folder of an export, got "
            f"{type(module).__name__}"
        )
    if config.backend != "auto":
        raise ConfigError(
            f"backend={config.backend!r}: only for an export, got a torch module: "
            "`model.export(folder)` makes one"
        )
    if example_inputs is None:
        raise ConfigError("example_inputs: expected the module's inputs [B, ...], got None")
    example = example_inputs if isinstance(example_inputs, tuple) else (example_inputs,)
    example = as_arrays(example)
    engine = TorchEngine(
        module,
        config.device,
        config.compile,
        config.precision,
        replayed=config.pad_to if config.cuda_graphs else (),
    )
    try:
        signature = Signature.probe(engine.run, example)
    except SpecError:
        if torch.bfloat16 not in engine.dtypes:
            raise
        engine.takes_bf16 = True  # a whole module in bfloat16: numpy's float32 is not for it
        signature = Signature.probe(engine.run, example)
    return NetworkDefinition(engine=engine, signature=signature, example=example)
