"""What a model is made of, opened from a torch module or from an export."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from bray_core.errors import ConfigError, ExportError, MissingExtraError
from bray_core.nested import Nested
from bray_core.protocols import Weights
from bray_model.engine import Engine
from bray_model.manifest import EXCHANGE, GRAPH, WEIGHTS, Manifest
from bray_model.signature import Signature

if TYPE_CHECKING:
    import torch

    Source: TypeAlias = torch.nn.Module | str | Path


@dataclass(frozen=True, kw_only=True, slots=True)
class Definition:
    """A network with weights, apart from who calls it and when."""

    engine: Engine
    signature: Signature
    example: tuple[Nested, ...] | None
    """Inputs `[B, ...]` that the network is known to take; None for an export."""
    version: int = 0

    def copy(self, version: int, weights: Weights | None) -> Definition:
        """Return a separate definition with other weights; None keeps them."""
        engine = self.engine.copy()
        if weights is not None:
            engine.load(weights)
        return replace(self, engine=engine, version=version)


def open_definition(
    source: Source, example_inputs: Nested | None, num_threads: int = 1
) -> Definition:
    """Open a torch module, or the folder of an export, which then runs in so many threads.

    Raises:
        ConfigError: the source is neither, or the example inputs are missing or needless.
        ExportError: the export is broken.
        MissingExtraError: a module without torch installed.
        SpecError: the example inputs do not fit the module.
    """
    if not isinstance(source, str | Path):
        return _open_module(source, example_inputs)
    if example_inputs is not None:
        raise ConfigError("example_inputs: an export has its own signature: leave them out")
    return _open_export(Path(source), num_threads)


def _open_export(path: Path, num_threads: int) -> Definition:
    manifest = Manifest.read(path)
    graph = manifest.read_file(path, GRAPH)
    from bray_model.onnx_engine import OnnxEngine

    exchange, weights = None, None
    if EXCHANGE in manifest.files:
        exchange = manifest.read_file(path, EXCHANGE)
        weights = read_weights(path, manifest)
    engine = OnnxEngine(graph, manifest.signature, exchange, weights, num_threads)
    return Definition(
        engine=engine, signature=manifest.signature, example=None, version=manifest.version
    )


def read_weights(path: Path, manifest: Manifest) -> Weights:
    """Read the weights that an export holds beside its graphs.

    Raises:
        ExportError: its file is absent or broken.
    """
    import safetensors.numpy

    try:
        weights: Weights = safetensors.numpy.load(manifest.read_file(path, WEIGHTS))
    except safetensors.SafetensorError as error:
        raise ExportError(f"{path / WEIGHTS}: not a safetensors file ({error})") from error
    return weights


def _open_module(module: Any, example_inputs: Nested | None) -> Definition:
    try:
        import torch

        from bray_model.torch_engine import TorchEngine, as_arrays
    except ImportError as error:
        raise MissingExtraError("a Model of a torch module", "bray-model", "torch") from error
    if not isinstance(module, torch.nn.Module):
        raise ConfigError(
            "module: expected a torch.nn.Module or the folder of an export, got "
            f"{type(module).__name__}"
        )
    if example_inputs is None:
        raise ConfigError("example_inputs: expected the module's inputs [B, ...], got None")
    example = example_inputs if isinstance(example_inputs, tuple) else (example_inputs,)
    example = as_arrays(example)
    engine = TorchEngine(module)
    return Definition(
        engine=engine, signature=Signature.probe(engine.run, example), example=example
    )
