"""Trains rows of `tests/test_on_a_gpu.py` on a device that is none: `train.py LIBRARY NAME…`.

It prints `ok NAME` for each; the first that fails ends it with its traceback.
"""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import torch

TESTS = Path(__file__).parent.parent
NAME = "pretended"


def pretend(library: str) -> None:
    """Load the device, and let it stand for `cuda` where bray asks torch for that."""
    torch.ops.load_library(library)
    torch.utils.rename_privateuse1_backend(NAME)
    module: Any = ModuleType(NAME)
    module.is_available = module.is_initialized = lambda: True
    module.device_count = lambda: 1
    module.current_device = lambda: 0
    module._is_in_bad_fork = lambda: False
    module.manual_seed_all = lambda seed: None
    module.get_rng_state = lambda device: torch.get_rng_state()
    module.set_rng_state = lambda state, device: None
    module.get_amp_supported_dtype = lambda: [torch.bfloat16]
    torch._register_device_module(NAME, module)
    torch.utils.generate_methods_for_privateuse1_backend(for_storage=False)

    from bray.training import compute
    from bray_model.engines import torch_engine
    from bray_model.text import opening
    from bray_trainer import arguments, trainer

    there, as_device = torch.device(NAME, 0), arguments.as_device
    trainer.as_device = lambda name: there if name == "cuda" else as_device(name)  # type: ignore[attr-defined]
    opening._device = lambda name: there if name == "cuda" else torch.device(name)  # type: ignore[assignment]
    compute.torch = SimpleNamespace(cuda=SimpleNamespace(is_available=lambda: True))  # type: ignore[assignment]
    _pretend_engines(torch_engine.TorchEngine, torch_engine, str(there))


def _pretend_engines(engine: Any, module: Any, there: str) -> None:
    begin, autocast = engine.__init__, torch.autocast

    def init(self: Any, network: Any, device: str = "cpu", *args: Any, **kwargs: Any) -> None:
        begin(self, network, there if device == "cuda" else device, *args, **kwargs)

    class Autocast(autocast):  # type: ignore[misc]
        def __init__(self, device_type: str, *args: Any, **kwargs: Any) -> None:
            is_there = device_type.startswith(NAME)
            super().__init__("cpu" if is_there else device_type, *args, **kwargs)

    engine.__init__ = init
    module._check_device = lambda device: None
    torch.autocast = Autocast  # type: ignore[misc]


def _play_here(spec: Any, server: Any, episodes: int, seed: int) -> list[float]:
    """Play an evaluation in this process: one of its own takes longer."""
    from bray.training import evaluation
    from bray_actor.gamecores.gamecore import play

    return play(
        spec, server.addresses[0], episodes=episodes, num_envs=evaluation.NUM_ENVS, seed=seed
    )


def main(library: str, names: list[str]) -> None:
    pretend(library)
    sys.path[:0] = [str(TESTS)]
    import test_on_a_gpu as rows

    from bray.training import evaluation

    evaluation._play_in_process = _play_here

    for name in names:
        with tempfile.TemporaryDirectory() as folder:
            os.chdir(folder)
            rows.begin(name)
            for times, device in rows.LAUNCHES:
                rows.train(name, times, device)
            os.chdir(TESTS)
        print(f"ok {name}", flush=True)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
