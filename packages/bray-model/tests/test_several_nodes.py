import os
import secrets
import subprocess
import sys
from pathlib import Path

import pytest

from bray_model.distributed.shared_weights import sweep

pytestmark = [pytest.mark.ray, pytest.mark.slow]


@pytest.mark.timeout(240)
def test_each_node_gets_each_version_once_and_lost_ones_are_replaced():
    """In a process of its own: this session's Ray has one node."""
    script = Path(__file__).with_name("several_nodes.py")
    environment = {
        **os.environ,
        "RAY_ENABLE_UV_RUN_RUNTIME_ENV": "0",
        "RAY_AUTH_MODE": "token",  # of this cluster alone: its ports are open meanwhile
        "RAY_AUTH_TOKEN": secrets.token_hex(32),
    }
    done = subprocess.run(
        [sys.executable, str(script)], capture_output=True, text=True, timeout=220, env=environment
    )
    assert done.returncode == 0, done.stdout + done.stderr[-6000:]
    lines = done.stdout.splitlines()
    assert [line for line in lines if line.startswith("done: ")] == [  # Ray speaks too
        "done: once per node",
        "done: a relay replaced",
        "done: a node lost",
        "done: the store lost",
        "done: closed",
    ]
    sweep()  # what the killed ones left
