"""Simulators of one's own: their commands, their processes, and how these end."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from bray_actor.gamecores.simulators import SimulatorFleet, command_words
from bray_core.errors import BrayError, ConfigError

ADDRESS = "tcp://127.0.0.1:7300"


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def is_alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state != "Z"


def test_a_command_is_split_as_a_shell_would_and_its_names_are_filled_in() -> None:
    words = command_words("'my game' --port {port} --tag a{index}b", {"port": 7300, "index": 2})

    assert words == ["my game", "--port", "7300", "--tag", "a2b"]


@pytest.mark.parametrize(
    ("command", "message"),
    [
        ("", "expected a program"),
        ("game 'open", "No closing quotation"),
        ("game --port {prot}", r"unknown name \{prot\}, did you mean 'port'"),
    ],
)
def test_a_wrong_command_is_refused(command: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        command_words(command)


def test_processes_are_told_who_they_are(tmp_path: Path) -> None:
    command = "sh -c 'echo {host} {port} {seed} {phase} {lanes} {first_lane} {index}; sleep 60'"
    fleet = SimulatorFleet(
        command, [ADDRESS], num_processes=2, lanes=4, seed=3, phase="evaluation", logs=tmp_path
    )

    fleet.start()
    until(lambda: "no" not in (fleet.last_words(0) + fleet.last_words(1)))
    words = [fleet.last_words(index) for index in range(2)]
    fleet.stop()

    assert words[0] == "127.0.0.1 7300 3000 evaluation 4 0 0"
    assert words[1] == "127.0.0.1 7300 3001 evaluation 4 4 1"


def test_a_program_that_is_not_there_is_told_before_anything_starts() -> None:
    with pytest.raises(ConfigError, match=r"source.command: .*'\./no-such-game'"):
        SimulatorFleet("./no-such-game {port}", [ADDRESS]).start()


def test_one_that_ends_is_started_again_until_it_ends_too_often(tmp_path: Path) -> None:
    fleet = SimulatorFleet("sh -c 'echo no room; exit 7'", [ADDRESS], logs=tmp_path)
    fleet.start()

    def check_for_long() -> None:
        deadline = time.monotonic() + 20
        while time.monotonic() < deadline:
            fleet.check()
            time.sleep(0.01)

    with pytest.raises(BrayError, match="with code 7: no room"):
        check_for_long()
    fleet.stop()


def test_what_a_simulator_has_started_ends_with_it(tmp_path: Path) -> None:
    pid_file = tmp_path / "pid"
    command = f"sh -c 'sleep 60 & echo $! > {pid_file}; wait'"
    fleet = SimulatorFleet(command, [ADDRESS])
    fleet.start()
    until(lambda: pid_file.is_file() and pid_file.read_text().endswith("\n"))
    pid = int(pid_file.read_text())
    assert is_alive(pid)

    fleet.stop()

    until(lambda: not is_alive(pid))


def test_simulators_end_when_bray_is_killed(tmp_path: Path) -> None:
    pid_file = tmp_path / "pid"
    command = f"sh -c 'echo $$ > {pid_file}; sleep 60'"
    program = (
        "import time\n"
        "from bray_actor.gamecores.simulators import SimulatorFleet\n"
        f"SimulatorFleet({command!r}, [{ADDRESS!r}]).start()\n"
        "time.sleep(60)\n"
    )
    bray = subprocess.Popen([sys.executable, "-c", program])
    until(lambda: pid_file.is_file() and pid_file.read_text().endswith("\n"))
    pid = int(pid_file.read_text())

    bray.send_signal(signal.SIGKILL)
    bray.wait()

    until(lambda: not is_alive(pid))
