"""The Go client of clients/go: its own tests, against servers of this process."""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
from pathlib import Path

import pytest

from bray_server import ServerThread

GO = Path(__file__).parent.parent / "clients" / "go"

pytestmark = pytest.mark.skipif(shutil.which("go") is None, reason="go is not installed")


class Actor:
    """Does as the body of a tick says; otherwise returns it."""

    def __init__(self, session: str) -> None:
        self.session = session

    async def start(self, body: bytes) -> bytes:
        return b"started"

    async def tick(self, body: bytes) -> bytes:
        if body.startswith(b"sleep "):
            await asyncio.sleep(float(body[6:]))
            return b"slept"
        if body == b"fail":
            raise ValueError('no "tick" säule 🎮')
        return self.session.encode() if body == b"who" else body

    async def end(self, body: bytes) -> bytes:
        return b"ended"

    async def abort(self, reason: str) -> None:
        pass


def go(*arguments: str, **variables: str) -> str:
    done = subprocess.run(
        ["go", *arguments],
        cwd=GO,
        env={**os.environ, **variables},
        capture_output=True,
        text=True,
        timeout=110,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_its_tests_pass() -> None:
    open_to_all, with_token = ServerThread(Actor), ServerThread(Actor, tokens=["secret"])
    ports = [thread.addresses[0].rpartition(":")[2] for thread in (open_to_all, with_token)]
    # The race detector is cgo's: it needs a C compiler.
    race = ["-race"] if shutil.which("gcc") else []
    variables = {"BRAY_TEST_PORT": ports[0], "BRAY_TEST_TOKEN_PORT": ports[1]}
    output = go("test", "-count=1", "-v", *race, ".", **variables)
    assert "--- SKIP" not in output, output
    open_to_all.close(0)
    with_token.close(0)


def test_it_is_formatted_and_vetted() -> None:
    go("vet", ".")
    if shutil.which("gofmt") is not None:
        done = subprocess.run(["gofmt", "-l", "."], cwd=GO, capture_output=True, check=True)
        assert done.stdout == b""
