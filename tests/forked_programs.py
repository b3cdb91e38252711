"""Runs programs in forks of one interpreter that has imported what takes seconds.

    python tests/forked_programs.py

A line of standard input is JSON, `{"script": [PATH, ARGUMENT…], "cwd": FOLDER}`; the answer is a
line `{"code": exit code, "output": text}`. Each program still has a process of its own. No module
of bray is imported before it: it imports what it needs.
"""

from __future__ import annotations

import importlib
import json
import os
import runpy
import signal
import subprocess
import sys
import tempfile
import traceback
from typing import IO, Any

HEAVY = (
    "torch",
    "torch._dynamo",
    "torch.onnx",
    "onnxscript.function_libs.torch_lib.ops",
    "onnxruntime",
    "gymnasium",
    "aiohttp",
)

_GRACE_S = 5.0


class ForkedPrograms:
    """The interpreter, seen from the tests; one program runs at a time."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, __file__],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    def run(self, script: list[str], cwd: str) -> tuple[int, str]:
        """Return a program's exit code and all that it printed.

        Args:
            script: Path of the program, and its arguments.
            cwd: Folder in which it runs.
        """
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps({"script": script, "cwd": cwd}) + "\n")
        self._process.stdin.flush()
        answer = json.loads(self._process.stdout.readline())
        return answer["code"], answer["output"]

    def close(self) -> None:
        """End the interpreter, and with it a program that still runs."""
        with self._process:
            assert self._process.stdin is not None
            self._process.stdin.close()
            try:
                self._process.wait(_GRACE_S)
            except subprocess.TimeoutExpired:
                os.killpg(self._process.pid, signal.SIGKILL)


def main() -> None:
    """Answer one line after another."""
    for name in HEAVY:
        importlib.import_module(name)
    for line in sys.stdin:
        wanted = json.loads(line)
        with tempfile.TemporaryFile() as output:
            code = forked(wanted, output)
            output.seek(0)
            text = output.read().decode(errors="replace")
        print(json.dumps({"code": code, "output": text}), flush=True)


def forked(wanted: dict[str, Any], output: IO[bytes]) -> int:
    """Run a program in a fork; return its exit code."""
    pid = os.fork()
    if pid:
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(output.fileno(), 1)
    os.dup2(output.fileno(), 2)
    os.chdir(wanted["cwd"])
    code = 1
    try:
        code = run(wanted["script"])
    finally:
        end(code)
    return code


def run(script: list[str]) -> int:
    """Run a program as `python SCRIPT` does; return its exit code."""
    sys.argv = script
    sys.path[0] = os.path.dirname(script[0])
    try:
        runpy.run_path(script[0], run_name="__main__")
    except SystemExit as ended:
        if isinstance(ended.code, str):
            print(ended.code, file=sys.stderr)
            return 1
        return ended.code or 0
    except Exception:  # noqa: BLE001 - as an interpreter does
        traceback.print_exc()
        return 1
    return 0


def end(code: int) -> None:
    """End as an interpreter does that was started for one program: threads first, then atexit."""
    import atexit
    import threading

    threading._shutdown()
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


if __name__ == "__main__":
    main()
