"""The loop that drives every algorithm, with parts that only count."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import bray
from bray.best import BestVersion
from bray.goal import Goal, Outcome
from bray.training.loop import Loop, Turn
from bray_actor import Played
from bray_core.errors import CodecError, ConfigError, FormatError, WorkerLostError
from bray_model import ModelConfig
from bray_model.versions.retention import Retention
from bray_model.versions.version_store import VersionStore

pytestmark = pytest.mark.usefixtures("evaluated_here")


class Parts:
    """Source, trainer and model in one: 10 frames a collect, one episode of return 5 each."""

    version = 4

    def __init__(self, checkpoints: Path) -> None:
        self.checkpoints = checkpoints
        self.did: list[Any] = []
        self.frames = 0
        self.fails_at = 10**9
        self.pauses = False

    def collect(self, steps: int) -> None:
        self.did.append(("collect", steps))
        self.frames += 10

    def poll(self) -> Played:
        frames, self.frames = self.frames, 0
        return Played(frames, [5.0] if frames else [])

    def close(self) -> None: ...

    def run(self, replays: int, checkpoint: bool = True) -> None:
        self.did.append(("train", replays) if replays or checkpoint else "resume")
        if checkpoint:
            self.write()

    def write(self) -> None:
        """Write a checkpoint, as a trainer does by itself now and then."""
        (self.checkpoints / f"replay-{len(self.did):09d}.pt").write_bytes(b"")

    def start(self) -> None:
        self.did.append("start")

    def wait(self, timeout_s: float) -> bool:
        self.did.append("wait")
        self.frames += 10
        if len(self.did) > self.fails_at:
            raise ValueError("the trainer broke")
        return self.pauses

    def stop(self) -> None:
        self.did.append("stop")
        self.write()

    def checkpoint(self) -> Path:
        return Path(f"{self.version}.safetensors")

    def pin(self, version: int, pinned: bool = True) -> None:
        self.pinned = version if pinned else None

    def progress(self) -> dict[str, float]:
        return {}


@pytest.fixture
def run(tmp_path: Path) -> Iterator[bray.Run]:
    with bray.init(tmp_path, "trial") as run:
        yield run


@pytest.fixture
def parts(run: bray.Run) -> Parts:
    return Parts(run.experiment.checkpoints)


def loop(
    run: bray.Run, parts: Parts, goal: Goal, returns: list[float], **options: Any
) -> Callable[[], Outcome]:
    def evaluate() -> list[float]:
        parts.did.append("evaluate")
        return returns

    turn = options.pop("turn", Turn(steps=3, replays=2, warmup_frames=25))
    return Loop(
        run,
        "a test",
        trainer=parts,
        source=parts,
        model=parts,
        turn=turn,
        goal=goal,
        evaluate=evaluate,
        **options,
    ).until_goal


PLAY, TRAIN, SAVE = ("collect", 3), ("train", 2), ("train", 0)


def test_playing_and_training_take_turns_after_the_warm_up(run: bray.Run, parts: Parts) -> None:
    goal = Goal(episode_return=9.0, evaluate_at=9.0, max_frames=50)
    outcome = loop(run, parts, goal, [1.0])()
    assert parts.did == [PLAY, PLAY, PLAY, PLAY, TRAIN, PLAY, TRAIN, "evaluate", SAVE]
    assert (outcome.reached, outcome.evaluation_return, outcome.frames) == (False, 1.0, 50)
    assert outcome.version == 4
    assert outcome.episode_returns == [1.0]
    written = json.loads((run.experiment.path / "result.json").read_text())
    assert written == asdict(outcome)


def test_what_is_evaluated_stays_on_disk_while_newer_versions_are_written(
    run: bray.Run, parts: Parts
) -> None:
    """As on Ray, where the trainer does not wait for an evaluation."""
    few = ModelConfig(retention=Retention(keep_last=2))
    model = run.model("policy", torch.nn.Linear(4, 2), np.zeros((1, 4), np.float32), few)
    returns = [1.0, 9.0]

    def evaluate() -> list[float]:
        for _ in range(3):
            model.publish(model.weights()[1])
            model.checkpoint()
        return [returns.pop()]

    turn = Turn(steps=3, replays=2)
    options: dict[str, Any] = {"goal": Goal(max_frames=50), "turn": turn, "evaluate_every": 30}
    Loop(
        run, "a test", trainer=parts, source=parts, model=model, evaluate=evaluate, **options
    ).until_goal()
    assert BestVersion.read(run.experiment.path) == BestVersion(
        version=0, evaluation_return=9.0, frames=30
    )
    assert VersionStore(run.experiment.models / "policy" / "versions", Retention()).pinned() == [0]


def test_what_is_played_while_a_run_on_ray_finishes_counts(
    run: bray.Run, parts: Parts, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stop() -> None:
        parts.frames += 7  # of the replay at hand

    monkeypatch.setattr(parts, "stop", stop)
    monkeypatch.setattr(bray.Run, "is_local", False)
    outcome = loop(run, parts, Goal(max_frames=50), [1.0])()
    monkeypatch.undo()
    assert outcome.frames == 57


def test_replays_by_the_frame_follow_turns_of_any_size(run: bray.Run, parts: Parts) -> None:
    """0.25 a frame are 2.5 a turn: what a turn does not make whole, the next one does."""
    turn = Turn(steps=3, replays_per_frame=0.25, warmup_frames=20)
    loop(run, parts, Goal(max_frames=50), [1.0], turn=turn)()
    trained = [did[1] for did in parts.did if did[0] == "train"]
    assert trained == [5, 2, 3, 2, 0]


def test_a_good_training_return_lets_it_evaluate_now_and_then(run: bray.Run, parts: Parts) -> None:
    """From 20 episodes on; between two are a tenth of the frames so far, or a fiftieth of all."""
    goal = Goal(episode_return=6.0, evaluate_at=5.0, max_frames=1_500)
    assert not loop(run, parts, goal, [5.0, 6.0])().reached
    at = [i for i, did in enumerate(parts.did) if did == "evaluate"]
    collects = [parts.did[:i].count(PLAY) for i in at]
    assert collects[:7] == [20, 22, 25, 28, 31, 34, 37]
    assert collects[-1] == 150


def test_a_window_of_the_newest_returns_calls_for_an_evaluation() -> None:
    """Those of before do not hold it up, and after one there are a tenth more frames first."""
    returns = [0.0] * 80 + [150.0] * 20
    goal = Goal(episode_return=475.0, evaluate_at=150.0, evaluate_window=20, max_frames=1_000_000)
    assert goal.calls_for_evaluation(returns, 10_000, 0)
    assert not goal.calls_for_evaluation(returns[:-1], 10_000, 0)
    assert not replace(goal, evaluate_window=21).calls_for_evaluation(returns, 10_000, 0)
    assert not goal.calls_for_evaluation(returns[-19:], 10_000, 0)
    assert not goal.calls_for_evaluation(returns, 10_999, 10_000)
    assert goal.calls_for_evaluation(returns, 11_000, 10_000)
    assert goal.calls_for_evaluation(returns, 520_000, 500_000)  # a fiftieth of the budget


@pytest.mark.parametrize("window", [0, 19, 101])
def test_a_window_is_of_20_to_100_episodes(window: int) -> None:
    with pytest.raises(ConfigError, match=f"evaluate_window: expected .* got {window}"):
        Goal(evaluate_window=window)


def test_it_ends_when_an_evaluation_reaches_the_goal(run: bray.Run, parts: Parts) -> None:
    goal = Goal(episode_return=6.0, evaluate_at=5.0, max_frames=1_500)
    outcome = loop(run, parts, goal, [5.0, 7.0])()
    assert outcome.reached
    assert outcome.frames == 200


def test_without_a_return_the_budget_decides(
    run: bray.Run, parts: Parts, capsys: pytest.CaptureFixture[str]
) -> None:
    """However good the training returns: one evaluation, in the end, which reaches the goal."""
    outcome = loop(run, parts, Goal(evaluate_at=0.0, max_frames=1_000), [1.0])()
    assert outcome.reached
    assert parts.did.count("evaluate") == 1
    assert outcome.frames == 1_000
    assert (
        "budget: ends after 1,000 frames of the trial; no return decides" in capsys.readouterr().out
    )


def test_hours_end_a_launch(
    run: bray.Run, parts: Parts, capsys: pytest.CaptureFixture[str]
) -> None:
    outcome = loop(run, parts, Goal(max_frames=10**9, max_hours=1e-9), [1.0])()
    assert not outcome.reached, "the budget was not used up as planned"
    assert "or 1e-09 hours of this launch" in capsys.readouterr().out


def test_evaluations_by_frames_need_no_returns(run: bray.Run, parts: Parts) -> None:
    goal = Goal(episode_return=9.0, max_frames=100)
    loop(run, parts, goal, [1.0], evaluate_every=30)()
    at = [i for i, did in enumerate(parts.did) if did == "evaluate"]
    assert [parts.did[:i].count(PLAY) for i in at] == [3, 6, 9, 10]


def test_it_says_what_decides(
    run: bray.Run, parts: Parts, capsys: pytest.CaptureFixture[str]
) -> None:
    loop(run, parts, Goal(episode_return=6.5, max_frames=20), [7.0])()
    first = capsys.readouterr().out.splitlines()
    assert first[0] == "a test"
    assert first[1].startswith(f"resuming {run.experiment.path} from policy version 4")
    assert first[2] == (
        "goal: a mean return of 6.5 over 100 evaluation episodes; "
        "gives up after 20 frames of the trial"
    )


def test_a_budget_must_be_given(run: bray.Run, parts: Parts) -> None:
    with pytest.raises(ConfigError, match="max_frames: expected a number of environment steps"):
        loop(run, parts, Goal(), [1.0])


def test_on_ray_it_starts_the_trainer_and_watches(
    run: bray.Run, parts: Parts, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bray.Run, "is_local", False)
    loop(run, parts, Goal(max_frames=20), [1.0])()
    assert parts.did == ["start", "wait", "wait", "stop", "evaluate", "stop"], (
        "the replay at hand is done and published before the last evaluation"
    )
    broken = Parts(parts.checkpoints)
    broken.fails_at = 3
    with pytest.raises(ValueError, match="the trainer broke"):
        loop(run, broken, Goal(max_frames=100), [1.0])()


def test_on_ray_a_source_that_fails_leaves_the_frames_that_the_trainer_saves(
    run: bray.Run, parts: Parts, monkeypatch: pytest.MonkeyPatch
) -> None:
    def poll() -> Played:
        if parts.did.count("wait") == 3:
            raise ValueError("the environment broke")
        return played()

    played = parts.poll
    monkeypatch.setattr(parts, "poll", poll)
    monkeypatch.setattr(bray.Run, "is_local", False)
    with pytest.raises(ValueError, match="the environment broke"):
        loop(run, parts, Goal(max_frames=100), [1.0])()
    assert parts.did == ["start", "wait", "wait", "wait", "stop"]
    progress = parts.checkpoints / "progress.json"
    assert json.loads(progress.read_text())["frames"] == 20
    broken = Parts(parts.checkpoints)
    broken.fails_at = 3
    monkeypatch.setattr(broken, "write", lambda: None)
    with pytest.raises(ValueError, match="the trainer broke"):
        loop(run, broken, Goal(max_frames=100), [1.0])()
    assert json.loads(progress.read_text())["frames"] == 20, "it saves nothing"


def test_on_ray_a_trainer_lost_just_before_the_end_leaves_what_it_published(
    run: bray.Run,
    parts: Parts,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    def stop() -> None:
        parts.did.append("stop")
        if parts.did.count("stop") == 1:
            raise WorkerLostError("its worker was replaced before the stop")

    monkeypatch.setattr(parts, "stop", stop)
    monkeypatch.setattr(bray.Run, "is_local", False)
    outcome = loop(run, parts, Goal(max_frames=20), [1.0])()
    monkeypatch.undo()
    assert parts.did[-3:] == ["stop", "evaluate", "stop"]
    assert outcome.evaluation_return == 1.0
    assert "replaced before the stop; the run ends with the newest version" in caplog.text


def test_on_ray_a_trainer_that_pauses_is_started_again(
    run: bray.Run, parts: Parts, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Once the evaluation that it pauses for is over."""
    monkeypatch.setattr(bray.Run, "is_local", False)
    parts.pauses = True
    loop(run, parts, Goal(max_frames=20), [1.0], evaluate_every=10)()
    assert parts.did == [
        *("start", "wait", "evaluate", "start", "wait", "stop", "evaluate", "stop"),
    ]


class TestProgress:
    """What `progress.json` keeps beside the checkpoints."""

    def launch(self, project: Path, goal: Goal) -> Parts:
        """Run a trial to its end."""
        with bray.init(project, "trial") as run:
            parts = Parts(run.experiment.checkpoints)
            self.outcome = loop(run, parts, goal, [1.0], turn=Turn(steps=3))()
        return parts

    def path(self, project: Path) -> Path:
        return project / "trial" / "checkpoints" / "progress.json"

    def test_frames_and_returns_are_the_trials(self, tmp_path: Path) -> None:
        self.launch(tmp_path, Goal(max_frames=50))
        content = json.loads(self.path(tmp_path).read_text())
        assert content["format"] == 1
        assert (content["frames"], content["returns"]) == (50, [5.0] * 5)
        assert content["evaluated_at"] == 50
        again = self.launch(tmp_path, Goal(max_frames=80))
        assert again.did[0] == "resume", "the trainer goes on before anything is played"
        assert again.did.count(PLAY) == 3
        assert self.outcome.frames == 80
        assert json.loads(self.path(tmp_path).read_text())["seconds"] > content["seconds"]

    def test_a_budget_that_is_used_up_is_not_overdrawn(self, tmp_path: Path) -> None:
        self.launch(tmp_path, Goal(max_frames=50))
        assert self.launch(tmp_path, Goal(max_frames=50)).did == ["resume", "evaluate", SAVE]
        assert self.outcome.frames == 50

    def broken_launch(
        self, project: Path, parts: list[Parts], listener: Callable[[Any, Parts], None]
    ) -> None:
        """Run a trial that `listener` ends, which is given the figures and the parts."""
        goal = Goal(episode_return=9.0, evaluate_at=9.0, max_frames=10_000)
        with bray.init(project, "trial") as run:
            parts.append(Parts(run.experiment.checkpoints))
            run.listen(lambda figures, save: listener(figures, parts[0]))
            loop(run, parts[0], goal, [1.0])()

    def test_a_killed_run_goes_on_from_its_checkpoint(self, tmp_path: Path) -> None:
        """It loses what came after; so do its counts."""

        def listener(figures: Any, parts: Parts) -> None:
            if figures["frames"] == 40:
                parts.write()
            elif figures["frames"] == 70:
                raise SystemExit

        with pytest.raises(SystemExit):
            self.broken_launch(tmp_path, [], listener)
        assert json.loads(self.path(tmp_path).read_text())["frames"] == 40
        self.launch(tmp_path, Goal(max_frames=60))
        assert self.outcome.frames == 60

    def test_on_ray_the_first_checkpoint_may_be_that_of_ctrl_c(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The trainer writes it where the run is closed, after the loop has ended."""
        monkeypatch.setattr(bray.Run, "is_local", False)

        def listener(figures: Any, parts: Parts) -> None:
            if figures["frames"] == 40:
                raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            self.broken_launch(tmp_path, made := [], listener)
        made[0].write()
        assert json.loads(self.path(tmp_path).read_text())["frames"] == 40

    def test_ctrl_c_writes_a_checkpoint_between_turns(self, tmp_path: Path) -> None:
        def listener(figures: Any, parts: Parts) -> None:
            if figures["frames"] == 40:
                raise KeyboardInterrupt

        made: list[Parts] = []
        with pytest.raises(KeyboardInterrupt):
            self.broken_launch(tmp_path, made, listener)
        assert made[0].did[-1] == SAVE
        assert json.loads(self.path(tmp_path).read_text())["frames"] == 40

    def test_ctrl_c_in_the_middle_of_a_step_writes_none(self, tmp_path: Path) -> None:
        """Half of the weights may have been moved; the count stays that of the checkpoint."""

        def listener(figures: Any, parts: Parts) -> None:
            if figures["frames"] < 40:
                return
            parts.write()

            def interrupted(replays: int, checkpoint: bool = True) -> None:
                parts.did.append("interrupted")
                raise KeyboardInterrupt

            parts.run = interrupted  # type: ignore[method-assign]

        made: list[Parts] = []
        with pytest.raises(KeyboardInterrupt):
            self.broken_launch(tmp_path, made, listener)
        assert made[0].did[-1] == "interrupted"
        assert json.loads(self.path(tmp_path).read_text())["frames"] == 40

    def test_on_ray_it_is_written_when_the_trainer_has_written(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        seen = []
        with bray.init(tmp_path, "trial") as run:
            monkeypatch.setattr(bray.Run, "is_local", False)
            parts = Parts(run.experiment.checkpoints)

            def look(figures: Any, save: Any) -> None:
                seen.append(self.path(tmp_path).exists())
                if figures["frames"] == 30:
                    parts.write()

            run.listen(look)
            loop(run, parts, Goal(max_frames=50), [1.0])()
            monkeypatch.undo()
        assert seen == [False] * 3 + [True] * 4
        assert json.loads(self.path(tmp_path).read_text())["frames"] == 50

    def test_checkpoints_that_were_moved_away_leave_nothing(self, tmp_path: Path) -> None:
        self.launch(tmp_path, Goal(max_frames=50))
        for path in self.path(tmp_path).parent.glob("*.pt"):
            path.unlink()
        self.launch(tmp_path, Goal(max_frames=50))
        assert self.outcome.frames == 50

    @pytest.mark.parametrize(
        ("text", "error", "message"),
        [
            ("{", CodecError, "progress.json: not JSON"),
            ('{"format": 1, "frames": "many"}', CodecError, "not the progress of a trial.*delete"),
            ('{"format": 1, "returns": 3}', CodecError, "not the progress of a trial.*delete"),
            ('{"format": 99}', FormatError, "progress.json: has format 99"),
        ],
    )
    def test_a_file_that_is_none_is_refused(
        self, text: str, error: type[Exception], message: str, tmp_path: Path
    ) -> None:
        self.launch(tmp_path, Goal(max_frames=50))
        self.path(tmp_path).write_text(text)
        with pytest.raises(error, match=message):
            self.launch(tmp_path, Goal(max_frames=80))
        assert self.path(tmp_path).read_text() == text
