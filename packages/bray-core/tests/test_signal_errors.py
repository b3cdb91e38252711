"""What a signal's handler raises within code of others is not the fault of that code."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import NoReturn

import pytest

from bray_core.process.signal_errors import raise_if_of_signal
from bray_core.process.user_modules import import_user_code


@pytest.fixture
def _exits() -> Iterator[None]:
    def leave(number: int, frame: object) -> NoReturn:
        raise SystemExit(128 + number)

    before = signal.signal(signal.SIGTERM, leave)
    yield
    signal.signal(signal.SIGTERM, before)


def ended() -> None:
    os.kill(os.getpid(), signal.SIGTERM)
    while True:
        pass


def failed() -> None:
    raise SystemExit(3)


@pytest.mark.usefixtures("_exits")
def test_an_exit_by_a_signal_is_raised_again() -> None:
    caught: list[object] = []
    for code in (failed, ended):
        try:
            code()
        except SystemExit as error:
            caught.append(error.code)
            if code is failed:
                raise_if_of_signal(error)
            else:
                with pytest.raises(SystemExit, match="143"):
                    raise_if_of_signal(error)
    assert caught == [3, 143]


@pytest.mark.usefixtures("_exits")
def test_a_module_that_is_imported_when_the_program_is_told_to_end(tmp_path: Path) -> None:
    path = tmp_path / f"slow_{tmp_path.name}.py"
    path.write_text("import os, signal\nos.kill(os.getpid(), signal.SIGTERM)\nwhile True: pass\n")
    with pytest.raises(SystemExit, match="143"):
        import_user_code(str(path))
    path.write_text("raise SystemExit(3)\n")
    with pytest.raises(ImportError, match="it raised SystemExit: 3"):
        import_user_code(str(path))
