"""Evaluation by simulators of one's own: a second fleet, or sessions that say what they are."""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from contextlib import ExitStack
from typing import Any

from bray.run import Run
from bray.sources.config import GamecoreSourceConfig
from bray.sources.evaluation_desk import EvaluationDesk
from bray.sources.simulator_ports import http_port_of
from bray_actor.gamecores.simulators import placeholders
from bray_actor.policy.session_router import RoutedSeat, SessionRouter
from bray_core.cli import check_interrupted
from bray_core.errors import DeadlineError
from bray_core.protocols import ModelProtocol
from bray_server import ServerThread

LOGS = "simulators"
"""Folder of a trial that takes what simulators write."""
_STUCK_S = 600.0
"""Seconds without a call after which a command's evaluation is given up; games may take hours."""
_SILENT_S = 60.0
"""Seconds without a call after which tagged sessions are not waited for; by then the server has
ended those that were silent."""
_TELLS_S = 600.0
"""Seconds between two lines of the log about an evaluation that takes long."""
_LOOK_S = 0.25

logger = logging.getLogger(__name__)


def evaluates_by_command(source: GamecoreSourceConfig) -> bool:
    """Return whether the command can be started for an evaluation."""
    return source.command is not None and "phase" in placeholders(source.command)


def evaluation_in_words(source: GamecoreSourceConfig, *, takes_tagged: bool) -> str:
    """Return how a run of these simulators is evaluated.

    Args:
        source: settings of the simulators.
        takes_tagged: whether sessions that are tagged as evaluation count.
    """
    if evaluates_by_command(source):
        return "the command is started once more with {phase} = evaluation"
    why = " (the command has no {phase})" if source.command is not None else ""
    if takes_tagged:
        return (
            "by sessions whose start says tags: {phase: evaluation}, if there are any; else the "
            f"returns of training decide{why}"
        )
    return f"the returns of training decide{why}"


def evaluate_by_command(
    run: Run, play: Any, policy: ModelProtocol, episodes: int, seed: int
) -> Sequence[float]:
    """Start the command for an evaluation, and return its episodes' returns.

    Args:
        run: makes the processes, and closes them.
        play: a `bray.sources.wire.gamecore_play.GamecorePlay`.
        policy: its weights do not change meanwhile.
        episodes: number of episodes.
        seed: seed of the evaluation.

    Raises:
        BrayError: a process ends again and again; quotes its last words.
        DeadlineError: no session called for ten minutes.
    """
    desk = EvaluationDesk(policy, play.policy)
    desk.open(policy, episodes)
    source = play.source
    router = SessionRouter({"*": RoutedSeat(spaces=play.spaces, make=desk, evaluate=desk)})
    needs_http = "http_port" in placeholders(source.command)
    with ExitStack() as stack:
        server = ServerThread(router, tcp_port=0, http_port=0 if needs_http else None)
        stack.callback(server.close, drain_s=0.0)
        fleet = run.simulators(
            source.command,
            lambda: server.worker_addresses,
            num_processes=source.num_processes,
            lanes=source.num_envs,
            seed=seed,
            phase="evaluation",
            http_port=http_port_of(server.addresses),
            logs=run.experiment.path / LOGS,
        )
        stack.callback(fleet.stop)
        fleet.start()
        wait = _DeskWait(desk, episodes)
        while (returns := wait.look()) is None:
            fleet.check()
            if wait.silent_s > _STUCK_S:
                raise DeadlineError(
                    f"evaluation: {desk.ended} of {episodes} episodes had ended when no session "
                    f"started or ticked for {_STUCK_S:.0f} s: does the command play with "
                    f"phase = evaluation? It says: {fleet.last_words(0)}"
                )
        desk.close()
    return returns


def evaluate_by_tagged(
    desk: EvaluationDesk, policy: ModelProtocol, episodes: int
) -> Sequence[float] | None:
    """Let the sessions that are tagged as evaluation play with a policy; return their returns.

    None: they have stopped coming.

    Args:
        desk: answers them.
        policy: its weights do not change meanwhile.
        episodes: number of episodes.
    """
    desk.open(policy, episodes)
    try:
        wait = _DeskWait(desk, episodes)
        while (returns := wait.look()) is None:
            if wait.silent_s > _SILENT_S:
                logger.warning(
                    "evaluation: %d of %d episodes had ended when no tagged session started or "
                    "ticked for %.0f s: training returns decide",
                    desk.ended,
                    episodes,
                    _SILENT_S,
                )
                return None
        return returns
    finally:
        desk.close()


class _DeskWait:
    """Waits for an evaluation's episodes, and tells the log how many there are where it is long."""

    def __init__(self, desk: EvaluationDesk, episodes: int) -> None:
        self._desk = desk
        self._episodes = episodes
        self._began_s = self._told_s = time.monotonic()

    @property
    def silent_s(self) -> float:
        """Seconds since a session last started, ticked or ended."""
        return time.monotonic() - self._desk.last_call_s

    def look(self) -> Sequence[float] | None:
        """Wait a moment; return the returns, or None while episodes are missing.

        Raises:
            KeyboardInterrupt: the run was asked to end.
        """
        check_interrupted()
        returns = self._desk.wait(_LOOK_S)
        if returns is None and (now := time.monotonic()) - self._told_s > _TELLS_S:
            self._told_s = now
            logger.warning(
                "evaluation: %d of %d episodes have ended after %.0f min: it goes on while its "
                "sessions tick (goal.evaluation_episodes asks for fewer)",
                self._desk.ended,
                self._episodes,
                (now - self._began_s) / 60,
            )
        return returns
