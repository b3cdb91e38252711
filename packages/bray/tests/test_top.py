"""`bray top`: a board of figures, keys in a real terminal, and requests that a real run heeds."""

from __future__ import annotations

import json
import os
import pty
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from bray.cli.trial_board import TrialBoard
from bray_core.cli import main
from bray_core.errors import BrayError, NotFoundError
from bray_core.files.trial_folders import newest_launch
from bray_core.trials import trial_requests
from bray_core.trials.experiment import Experiment
from bray_core.trials.trial import Trial

_DEADLINE_S = 90.0


def make(project: Path, name: str = "one", rows: int = 30) -> Trial:
    """A trial with figures as a run writes them."""
    experiment = Experiment.open(project, name, {})
    launch = newest_launch(experiment.path)
    assert launch is not None
    with (launch / "metrics.jsonl").open("w") as file:
        for second in range(rows):
            values = {
                "trainer/loss": 0.5, "trainer/policy_lag_versions": 1.25, "actor/utilisation": 0.9,
                "trainer/utilisation": 0.3, "process/memory_bytes{component=driver}": 2e8,
                "actor/episode_return": float(second), "actor/episodes": second + 1,
            }  # fmt: skip
            axes = {"frames": 100 * second, "steps": second, "policy_version": second // 10}
            times = {"seconds": second, "wall_time_s": 1e9 + second}
            file.write(json.dumps({**axes, **times, "values": values}) + "\n")
    experiment.close()
    return Trial(experiment.path)


def test_the_board_tells_rates_limits_memory_and_lag(tmp_path: Path) -> None:
    board = TrialBoard.read(make(tmp_path))
    assert (board.frames, board.version, board.lag, board.state) == (2900, 2, 1.25, "finished")
    assert board.rates == pytest.approx({"frames": 100, "steps": 1})
    assert board.losses == {"loss": 0.5}
    assert board.memory_bytes == {"driver": 2e8}
    assert board.episode_returns == tuple(range(18, 30))
    assert board.limit.endswith("runners step environments 90% of the time: these limit this run.")
    text = "\n".join(board.lines())
    for words in (
        *("one: finished", "2,900 in 29 s; 100 frames/s", "lag 1.25 versions", "200 MB driver"),
        *("▁▂▂▃▄▄▅▅▆▇▇█ 29", "actor busy   ██████████████████   90%"),
    ):
        assert words in text, text


def test_a_trial_without_figures_and_an_unreadable_one_say_so(tmp_path: Path) -> None:
    Experiment.open(tmp_path, "new", {}).close()
    assert "no figures yet" in "\n".join(TrialBoard.read(Trial(tmp_path / "new")).lines())
    trial = make(tmp_path, rows=0)
    launch = newest_launch(trial.path)
    assert launch is not None
    (launch / "launch.json").write_text("{\x1b[2J")
    board = TrialBoard.read(trial)
    assert board.state == "unreadable"
    assert "not JSON" in board.lines()[1]


def test_text_and_json_where_there_is_no_terminal(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    make(tmp_path)
    assert main(["top", "one", "--project", str(tmp_path)]) == 0
    assert capsys.readouterr().out.startswith("one: finished\n")
    assert main(["top", str(tmp_path / "one"), "--once", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["frames"] == 2900


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "trial: none runs in"),
        (["on"], "is no trial folder: expected one that a launch wrote, did you mean 'one'?"),
        (["one", "--every", "0"], "--every: expected more than 0, got 0"),
    ],
)
def test_mistakes_are_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], words: list[str], message: str
) -> None:
    make(tmp_path)
    assert main(["top", *words, "--project", str(tmp_path)]) == 2
    assert message in capsys.readouterr().err


def test_requests_are_taken_once_and_forgotten(tmp_path: Path) -> None:
    trial_requests.ask(tmp_path, "evaluate")
    assert trial_requests.is_asked(tmp_path, "evaluate")
    assert trial_requests.take(tmp_path, "evaluate")
    assert not trial_requests.take(tmp_path, "evaluate")
    trial_requests.ask(tmp_path, "checkpoint")
    trial_requests.forget(tmp_path)
    assert not trial_requests.is_asked(tmp_path, "checkpoint")


def test_what_does_not_run_here_is_not_stopped(tmp_path: Path) -> None:
    with pytest.raises(NotFoundError, match="is not running"):
        trial_requests.stop(make(tmp_path))
    experiment = Experiment.open(tmp_path, "far", {})
    record = experiment.launch / "launch.json"
    content = json.loads(record.read_text())
    record.write_text(json.dumps({**content, "host": "elsewhere"}))
    try:
        with pytest.raises(BrayError, match="runs on elsewhere: stop it there"):
            trial_requests.stop(Trial(experiment.path))
    finally:
        experiment.close()


class _Terminal:
    """A `bray top` in a pseudo-terminal."""

    def __init__(self, *arguments: str) -> None:
        self._master, slave = pty.openpty()
        command = [sys.executable, "-m", "bray_core.cli", "top", *arguments]
        self.process = subprocess.Popen(
            command, stdin=slave, stdout=slave, stderr=slave, start_new_session=True
        )
        os.close(slave)
        self.seen = ""

    def press(self, key: str) -> None:
        os.write(self._master, key.encode())

    def wait_for(self, words: str) -> None:
        """Wait until words were drawn."""
        until = time.monotonic() + _DEADLINE_S
        while words not in self.seen:
            assert time.monotonic() < until, self.seen[-2000:]
            if select.select([self._master], [], [], 0.2)[0]:
                try:
                    self.seen += os.read(self._master, 65536).decode(errors="replace")
                except OSError:  # the other end is closed
                    assert words in self.seen, self.seen[-2000:]

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        os.close(self._master)


@contextmanager
def terminal(*arguments: str) -> Iterator[_Terminal]:
    made = _Terminal(*arguments)
    try:
        yield made
    finally:
        made.close()


def test_keys_quit_and_the_terminal_is_left_as_it_was(tmp_path: Path) -> None:
    make(tmp_path)
    experiment = Experiment.open(tmp_path, "one")  # this process runs it now
    try:
        with terminal("--project", str(tmp_path), "--every", "0.1") as shown:
            shown.wait_for("q quit")
            shown.press("e")
            shown.wait_for("asked for an evaluation")
            assert trial_requests.is_asked(experiment.path, "evaluate")
            shown.press("q")
            assert shown.process.wait(30) == 0
            shown.wait_for("\x1b[?25h\x1b[?1049l")
    finally:
        experiment.close()


@pytest.mark.long
def test_a_real_run_heeds_the_keys(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "bray_core.cli", "train", "ppo", "CartPole-v1", "num_envs=2"]
    command += ["hidden=[8]", "checkpoint_every=100000", "--goal", "1e9", "--frames", "1000000000"]
    command += ["--project", str(tmp_path), "--trial", "run", "--episodes", "2"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    run = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment
    )
    assert run.stdout is not None
    try:
        for line in run.stdout:
            if "frames " in line and "version" in line:
                break
        checkpoints = tmp_path / "run" / "checkpoints"
        before = set(checkpoints.glob("replay-*.pt"))
        with terminal("--project", str(tmp_path), "--every", "0.2") as shown:
            shown.wait_for("policy_loss")
            shown.wait_for("take turns")
            shown.press("c")
            shown.wait_for("asked for a checkpoint")
            until = time.monotonic() + _DEADLINE_S
            while set(checkpoints.glob("replay-*.pt")) <= before:
                assert time.monotonic() < until
                time.sleep(0.1)
            shown.press("e")
            assert any(line.startswith("evaluation at ") for line in run.stdout)
            shown.press("s")
            assert run.wait(_DEADLINE_S) == 130
            assert shown.process.wait(30) == 0
            shown.wait_for("run: interrupted")
    finally:
        run.send_signal(signal.SIGKILL)
        run.communicate()
