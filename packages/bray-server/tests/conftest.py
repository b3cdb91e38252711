from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from server_services import Launch

SERVICES = Path(__file__).parent / "server_services.py"


@pytest.fixture
def launch() -> Iterator[Launch]:
    """Start a server as a process of its own: `launch("Counter", http_port=0)`."""
    processes: list[subprocess.Popen[str]] = []

    def start(service: str, **options: Any) -> tuple[subprocess.Popen[str], list[str]]:
        command = [sys.executable, str(SERVICES), service, json.dumps(options)]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        processes.append(process)
        assert process.stdout is not None
        return process, json.loads(process.stdout.readline())

    yield start
    for process in processes:
        process.kill()
        process.wait()
        assert process.stdout is not None
        process.stdout.close()
