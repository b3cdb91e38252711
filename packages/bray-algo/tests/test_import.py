"""What the package shows; what importing it loads is in the workspace's tests/test_layering.py."""

from __future__ import annotations

import importlib
import pkgutil

import bray_algo


def test_exported_names_exist() -> None:
    assert sorted(bray_algo.__all__) == bray_algo.__all__
    assert all(hasattr(bray_algo, name) for name in bray_algo.__all__)


def test_every_submodule_is_imported_from_the_package_and_shadows_no_name() -> None:
    names = [module.name for module in pkgutil.iter_modules(bray_algo.__path__)]
    assert {"games", "league", "losses", "networks", "returns", "validation"} <= set(names)
    for name in names:
        module = importlib.import_module(f"bray_algo.{name}")
        assert getattr(bray_algo, name) is module
