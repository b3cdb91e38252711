from __future__ import annotations

import subprocess
import sys

import pytest

import bray


@pytest.mark.parametrize("name", bray.__all__)
def test_every_public_name_can_be_had(name: str) -> None:
    assert getattr(bray, name) is not None


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="has no attribute 'Nonsense'"):
        bray.Nonsense  # noqa: B018


def test_importing_bray_loads_nothing_heavy() -> None:
    script = (
        "import sys, bray; "
        "heavy = {'ray', 'torch', 'tensorboard', 'onnxruntime', 'aiohttp', 'rich'}; "
        "sys.exit(', '.join(heavy & set(sys.modules)) or 0)"
    )
    subprocess.run([sys.executable, "-c", script], check=True)


def test_without_ray_each_remote_name_says_which_extra_to_install() -> None:
    script = """
import sys
sys.modules["ray"] = None
import bray
import bray_core.errors
for name in ("Actor", "Buffer", "Model", "Server", "Trainer"):
    try:
        getattr(bray, f"Remote{name}")
    except bray_core.errors.MissingExtraError as error:
        print(error)
"""
    printed = subprocess.check_output([sys.executable, "-c", script], text=True)
    needs = "needs an optional dependency: install"
    assert printed.splitlines() == [
        f"bray_{name}.remote {needs} bray-{name}[ray]"
        for name in ("actor", "buffer", "model", "core", "trainer")
    ]
