"""Evaluation by simulators of one's own lasts while their sessions tick, and ends in silence."""

from __future__ import annotations

import asyncio
import logging
import sys
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import bray
from bray.sources import simulator_evaluation
from bray.sources.config import GamecoreSourceConfig, ServingActorConfig
from bray.sources.evaluation_desk import EvaluationDesk
from bray.sources.simulator_evaluation import evaluate_by_command, evaluate_by_tagged
from bray.sources.wire.gamecore_play import GamecorePlay
from bray_actor import PolicyConfig
from bray_core import codec
from bray_core.errors import DeadlineError
from bray_core.protocols import Answer

SILENT_S, TICK_S = 0.6, 0.1


class Leftmost:
    """A model that takes action 0."""

    version = 1

    async def infer(self, *inputs: Any, **options: Any) -> Answer:
        return Answer({"logits": np.array([1.0, 0.0], np.float32), "value": np.float32(0)}, 1)


class Game(threading.Thread):
    """A tagged session of an evaluation, which ticks for a while and then ends, or is silent."""

    def __init__(self, desk: EvaluationDesk, ticks: int, *, ends: bool) -> None:
        super().__init__()
        self._desk, self._ticks, self._ends = desk, ticks, ends

    def run(self) -> None:
        asyncio.run(self._play())

    async def _play(self) -> None:
        session = self._desk("0/0")
        await session.start(b"")
        body = codec.encode({"observation": np.zeros(3, np.float32), "reward": 1.0})
        for _ in range(self._ticks):
            await session.tick(body)
            await asyncio.sleep(TICK_S)
        if self._ends:
            await session.end(body)


@pytest.fixture
def desk(monkeypatch: pytest.MonkeyPatch) -> EvaluationDesk:
    monkeypatch.setattr(simulator_evaluation, "_SILENT_S", SILENT_S)
    monkeypatch.setattr(simulator_evaluation, "_LOOK_S", 0.05)
    model: Any = Leftmost()
    return EvaluationDesk(model, PolicyConfig())


def evaluate(desk: EvaluationDesk, game: Game) -> Any:
    threading.Timer(0.05, game.start).start()
    model: Any = Leftmost()
    returns = evaluate_by_tagged(desk, model, 1)
    game.join()
    return returns


def test_a_long_game_is_waited_for_while_it_ticks(
    desk: EvaluationDesk, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(simulator_evaluation, "_TELLS_S", SILENT_S)
    game = Game(desk, 3 * int(SILENT_S / TICK_S), ends=True)

    with caplog.at_level(logging.WARNING):
        returns = evaluate(desk, game)

    assert returns == [3 * int(SILENT_S / TICK_S)]
    assert "evaluation: 0 of 1 episodes have ended after 0 min: it goes on" in caplog.text


def test_sessions_that_fall_silent_are_not_waited_for(
    desk: EvaluationDesk, caplog: pytest.LogCaptureFixture
) -> None:
    began_s = time.monotonic()

    with caplog.at_level(logging.WARNING):
        returns = evaluate(desk, Game(desk, 1, ends=False))

    assert returns is None
    assert time.monotonic() - began_s < 10
    assert "0 of 1 episodes had ended when no tagged session started or ticked" in caplog.text


def test_a_command_that_starts_no_session_is_given_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(simulator_evaluation, "_STUCK_S", 0.3)
    command = f"{sys.executable} -c 'import time; time.sleep(100)' {{phase}}"
    play = GamecorePlay(
        source=GamecoreSourceConfig(command=command),
        actor=ServingActorConfig(),
        policy=PolicyConfig(),
    )
    model: Any = Leftmost()

    with (
        bray.init(tmp_path, "trial") as run,
        pytest.raises(DeadlineError, match=r"0 of 2 episodes had ended when no session .* 0 s"),
    ):
        evaluate_by_command(run, play, model, 2, seed=1)
