from __future__ import annotations

import importlib
import pkgutil
import subprocess
import sys

import bray_algo


def test_importing_loads_nothing_of_bray_nor_ray() -> None:
    script = (
        "import sys, bray_algo; found = {m.split('.')[0] for m in sys.modules}; "
        "print(*sorted(m for m in found if m != 'bray_algo' and m.startswith('bray') "
        "or m in ('ray', 'tensorboard', 'onnxruntime', 'aiohttp')))"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], check=True, capture_output=True, text=True
    )
    assert done.stdout.split() == []


def test_exported_names_exist() -> None:
    assert sorted(bray_algo.__all__) == bray_algo.__all__
    assert all(hasattr(bray_algo, name) for name in bray_algo.__all__)


def test_every_submodule_is_imported_from_the_package_and_shadows_no_name() -> None:
    names = [module.name for module in pkgutil.iter_modules(bray_algo.__path__)]
    assert {"sac", "ppo", "returns", "league", "validation"} <= set(names)
    for name in names:
        module = importlib.import_module(f"bray_algo.{name}")
        assert getattr(bray_algo, name) is module
