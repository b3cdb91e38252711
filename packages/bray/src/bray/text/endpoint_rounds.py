"""Sessions of programs at the endpoint: whoever calls plays, in any language.

program ──OpenAI requests──► endpoint ──► model
        ──reward at the end─► episode ──► rows of its segments ──► trainer
"""

from __future__ import annotations

import queue
import shlex
import shutil
import sys
import time
from collections.abc import Sequence
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np

from bray.text.config import TextSourceConfig
from bray.text.rounds import Rounds
from bray.text.samples import TextSample, TokenRow
from bray_actor.gamecores.simulators import SimulatorFleet, command_words
from bray_core import metrics
from bray_core.errors import ConfigError, DeadlineError
from bray_model.chat.config import ChatConfig
from bray_model.chat.endpoint import ChatEndpoint
from bray_model.chat.episodes import ChatEpisode, TokenSegment
from bray_model.text.text_model import TextModel
from bray_server import ServerThread

_LOOK_S = 0.5
_ROUNDS_THAT_WAIT = 4


class EndpointRounds:
    """Serves the model at an endpoint, starts programs that play there, and collects episodes.

    Sessions are compared with those of their group: the part of the session's id before its last
    dot, such as `seven` of `seven.12`. Ids without a dot are all of one group.

    Args:
        model: what answers.
        source: settings.
        held_out: what plays evaluations; None: nothing can.
        logs: folder of what programs print.
        seed: seed of the programs.
    """

    def __init__(
        self,
        model: TextModel,
        source: TextSourceConfig,
        *,
        held_out: Rounds | None,
        logs: Path,
        seed: int,
    ) -> None:
        self._source = source
        self._held_out = held_out
        self._episodes: queue.Queue[ChatEpisode] = queue.Queue()
        self._most_waiting = 10_000
        config = ChatConfig(session_idle_s=source.session_timeout_s)
        answering: Any = model
        self._endpoint = ChatEndpoint(answering, config, self._take)
        self._server = ServerThread(
            self._endpoint.actor, pages=self._endpoint, tcp_port=0, http_port=source.port
        )
        self._fleet = None if source.program is None else self._programs(source, logs, seed)
        self._is_started = False

    @property
    def base_url(self) -> str:
        """Where programs call, without the path of a session."""
        return next(one for one in self._server.addresses if one.startswith("http"))

    def _programs(self, source: TextSourceConfig, logs: Path, seed: int) -> SimulatorFleet:
        assert source.program is not None, "the caller has looked"
        program = located_program(source.program)
        words = command_words(program)
        if shutil.which(words[0]) is None:
            raise ConfigError(
                f"source.program: expected a program that can be run, got {words[0]!r}: there is "
                f"none of this name in {Path.cwd()} or on the PATH"
            )
        base = f"{self.base_url}/sessions/program-{{index}}/v1"
        return SimulatorFleet(
            f"env OPENAI_BASE_URL={base} OPENAI_API_KEY=bray {program}",
            lambda: [one for one in self._server.addresses if one.startswith("tcp")],
            num_processes=source.count,
            seed=seed,
            http_port=int(self.base_url.rpartition(":")[2]),
            logs=logs,
        )

    def _take(self, episode: ChatEpisode) -> None:
        """Take an episode, on the server's event loop."""
        if episode.reward is None or not episode.segments:
            metrics.record("text/sessions_without_reward", 1, kind="count")
        elif self._episodes.qsize() >= self._most_waiting:
            metrics.record("text/dropped_sessions", 1, kind="count")
        else:
            self._episodes.put(episode)

    def play(self, groups: int, size: int, rng: np.random.Generator) -> list[TextSample]:
        """Return the next sessions that end, as many as that makes.

        Raises:
            DeadlineError: none ended for twice the time-out of sessions.
        """
        if not self._is_started:
            self._is_started = True
            if self._fleet is not None:
                self._fleet.start()
        wanted = groups * size
        self._most_waiting = _ROUNDS_THAT_WAIT * wanted
        found: list[ChatEpisode] = []
        deadline = time.monotonic() + 2 * self._source.session_timeout_s
        while len(found) < wanted:
            if self._fleet is not None:
                self._fleet.check()
            try:
                found.append(self._episodes.get(timeout=_LOOK_S))
            except queue.Empty:
                if time.monotonic() > deadline:
                    raise DeadlineError(self._silence()) from None
            else:
                deadline = time.monotonic() + 2 * self._source.session_timeout_s
        return samples_of(found)

    def _silence(self) -> str:
        return (
            f"source: no session ended with a reward for {2 * self._source.session_timeout_s:g} s: "
            f"programs call {self.base_url}/sessions/<id>/v1 and end a session by "
            'POST .../sessions/<id>/v1/end or /v1/sessions/<id>/end with {"reward": number}'
        )

    def evaluate(self, count: int, rng: np.random.Generator | None) -> list[float]:
        """Return the rewards of conversations in this process; none where there is no class."""
        return [] if self._held_out is None else self._held_out.evaluate(count, rng)

    def close(self) -> None:
        """End the programs, then the endpoint."""
        if self._fleet is not None:
            self._fleet.stop()
        self._server.close(0.0)
        if self._held_out is not None:
            self._held_out.close()


def located_program(program: str) -> str:
    """Return a command with `{python}` and `{templates}` filled in.

    Args:
        program: the command of a template.
    """
    templates = Path(str(resources.files("bray"))) / "templates"
    filled = program.replace("{python}", shlex.quote(sys.executable))
    return filled.replace("{templates}", shlex.quote(str(templates)))


def samples_of(episodes: Sequence[ChatEpisode]) -> list[TextSample]:
    """Return episodes as samples, in groups by the ids of their sessions.

    Args:
        episodes: episodes with a reward.
    """
    numbers: dict[str, int] = {}
    found = []
    for one in episodes:
        assert one.reward is not None, "those without a reward are counted and dropped"
        name = one.session.rpartition(".")[0]
        found.append(
            TextSample(
                rows=tuple(row_of_segment(segment) for segment in one.segments),
                reward=float(one.reward),
                group=numbers.setdefault(name, len(numbers)),
                is_cut=bool(one.finish_reasons) and one.finish_reasons[-1] == "length",
            )
        )
    return sorted(found, key=lambda one: one.group)


def row_of_segment(segment: TokenSegment) -> TokenRow:
    """Return the row of a segment of an episode."""
    return TokenRow(
        tokens=segment.token_ids,
        mask=segment.is_own,
        log_prob=segment.log_probs,
        version=np.where(segment.is_own, segment.versions, 0).astype(np.int32),
    )
