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
