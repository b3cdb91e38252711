"""Turns of several learners in one process, and several trainers on Ray, as the loop sees them.

In a local run a turn is played by all sources, in the order of their names, until a learner has
what it trains on; then each learner that has enough trains, in the order of theirs. So the same
seed is the same run. On Ray all go by themselves.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from bray.sources.source import ExperienceSource
from bray.training.learner import Learner
from bray.training.loop import POLL_S, episodes_of, stop_on_ray
from bray_actor import Played
from bray_actor.episodes import PlayedEpisode
from bray_actor.multi_agent.seat import GameResult
from bray_core import metrics
from bray_core.process.held_interrupts import Held, held_interrupts


@dataclass(frozen=True, kw_only=True, slots=True)
class PlayingSource:
    """A source of a run, and how much it plays in a turn."""

    name: str
    """Name of the source."""
    source: ExperienceSource
    """Plays, and pushes what was recorded."""
    steps: int
    """Steps of each of its environments in a turn, at most."""
    learner: str | None = None
    """Name of the learner that all of its frames belong to where it does not tell by itself."""


class ReplaysDue:
    """How many replays a learner trains on after a turn.

    A queue gives as many as are ready: agents that come and go do not fill all queues alike. A
    replay gives them in proportion to what was recorded.

    Args:
        learner: whose buffer it is.
        frames_per_turn: recorded steps for which the learner's own turn has its replays.
    """

    def __init__(self, learner: Learner, frames_per_turn: int) -> None:
        self._learner = learner
        self._per_frame = learner.turn.replays / frames_per_turn
        self._frames = 0
        self._warmup = 0
        """Frames before there was enough to train on."""
        self._trained = 0.0

    def __call__(self, new_frames: int) -> int:
        """Return the number after so many more recorded steps."""
        learner = self._learner
        if learner.batch_steps is not None:
            return int(learner.buffer.stats()["queued_steps"]) // learner.batch_steps
        self._frames += new_frames
        if self._is_short:
            self._warmup = self._frames
        due = (self._frames - self._warmup) * self._per_frame - self._trained
        self._trained += int(due)
        return int(due)

    @property
    def _is_short(self) -> bool:
        """Whether there is too little to train on yet: in the replay, or in one of a mixture."""
        learner = self._learner
        if not learner.replays:
            return self._frames <= learner.turn.warmup_frames
        return any(one.stats()["queued"] < learner.min_size for one in learner.replays.values())


class StepsDue:
    """How many steps a learner takes after a turn that learns from a data set alone: as many as
    there are between two of its versions, until it has taken them all.

    Args:
        learner: what learns.
    """

    def __init__(self, learner: Learner) -> None:
        self._learner = learner

    def __call__(self, new_frames: int) -> int:
        """Return the number, whatever was recorded."""
        return self._learner.turn.replays if steps_left(self._learner) else 0  # whole versions


def steps_left(learner: Learner) -> int:
    """Return the steps that are left to a learner of a data set.

    Args:
        learner: what learns; it has a trainer.
    """
    return max(0, (learner.max_replays or 0) - int(learner.trainer.progress()["steps"]))


class SeveralTurns:
    """Lets a local run of several learners go on, as `bray.training.loop.Turns` does that of one.

    Args:
        learners: learners by name.
        due: what says how many replays a learner trains on, by its name.
        sources: what plays.
        main: name of the learner whose returns count.
        after: called with what was played in each turn, before it is trained on.
    """

    def __init__(
        self,
        learners: Mapping[str, Learner],
        due: Mapping[str, Callable[[int], int]],
        sources: Sequence[PlayingSource],
        main: str,
        after: Callable[[Played], None],
    ) -> None:
        self._learners = learners
        self._due = due
        self._sources = sources
        self._main = main
        self._after = after
        self._held = Held()

    def begin(self, *, is_resumed: bool) -> None:
        """Let the trainers go on from their checkpoints before the first step is played."""
        if is_resumed:
            self._train(dict.fromkeys(self._learners, 0))

    def __call__(self) -> Played:
        """Play a turn, then let those train who have enough."""
        for one in self._sources:
            one.source.collect(one.steps)
        played = merged(self._sources, self._main)
        self._after(played)
        frames = played.frames_by_seat
        with held_interrupts() as self._held:  # steps that are torn have no checkpoint
            self._train({name: due(frames.get(name, 0)) for name, due in self._due.items()})
        return played

    def _train(self, replays: Mapping[str, int]) -> None:
        for name, learner in self._learners.items():
            with metrics.labelled(trainer=name):
                learner.trainer.run(replays[name], checkpoint=False)

    def save(self) -> bool:
        """Write checkpoints, unless a second interrupt tore a step."""
        if not self._held.is_torn:
            self.end()
        return not self._held.is_torn

    def finish(self) -> None:
        """Do nothing: all that was played is trained on."""

    def end(self) -> None:
        """Write a checkpoint of each."""
        for learner in self._learners.values():
            learner.trainer.run(0)


class SeveralWatch:
    """Looks after several trainers and sources that go by themselves, on Ray.

    Args:
        learners: learners by name.
        sources: what plays.
        main: name of the learner whose returns count.
        after: called with what was played.
    """

    def __init__(
        self,
        learners: Mapping[str, Learner],
        sources: Sequence[PlayingSource],
        main: str,
        after: Callable[[Played], None],
    ) -> None:
        self._learners = list(learners.values())
        self._trainers: list[Any] = [learner.trainer for learner in self._learners]
        self._paused = [False] * len(self._trainers)
        self._sources = sources
        self._main = main
        self._after = after

    def begin(self, *, is_resumed: bool) -> None:
        """Start the trainers, which go on from their checkpoints."""
        for trainer in self._trainers:
            trainer.start()

    def __call__(self) -> Played:
        """Wait a moment, and return what was played meanwhile."""
        for index, trainer in enumerate(self._trainers):
            if self._paused[index]:  # for an evaluation, which is over
                learner = self._learners[index]
                if learner.max_replays is not None and not steps_left(learner):
                    continue  # it has learnt all that its data set shall teach it
                trainer.start()
            self._paused[index] = trainer.wait(0.0 if index else POLL_S)
        return self._poll()

    def _poll(self) -> Played:
        played = merged(self._sources, self._main)
        self._after(played)
        return played

    def save(self) -> bool:
        """Write nothing: trainers of other processes write checkpoints by themselves."""
        return True

    def finish(self) -> Played:
        """Stop the trainers after the replays at hand, which they publish."""
        self.end()
        return self._poll()

    def end(self) -> None:
        """Stop the trainers, which write checkpoints."""
        for trainer in self._trainers:
            stop_on_ray(trainer)


class SeveralSources:
    """Several sources as the loop sees them: one.

    Args:
        sources: what plays.
        main: name of the learner whose returns count.
    """

    def __init__(self, sources: Sequence[PlayingSource], main: str) -> None:
        self._sources = sources
        self._main = main

    def collect(self, steps: int) -> None:
        """Do nothing: turns collect from each source as much as it plays."""

    def poll(self) -> Played:
        """Return what all have played; on Ray they begin to play with the first call."""
        return merged(self._sources, self._main)

    def close(self) -> None:
        """End what plays."""
        for one in self._sources:
            one.source.close()


def merged(sources: Sequence[PlayingSource], main: str) -> Played:
    """Return what several sources have played since they were last asked.

    Args:
        sources: what plays.
        main: name of the learner whose returns are returned.
    """
    frames: dict[str, int] = {}
    episodes: list[PlayedEpisode] = []
    results: list[GameResult] = []
    for one in sources:
        played = one.source.poll()
        results += played.results
        found = played.frames_by_seat
        if one.learner is not None and not found:
            found = {one.learner: played.frames}
        if one.learner == main and not played.results:  # else they are in the results
            episodes += episodes_of(played)
        for name, number in found.items():
            frames[name] = frames.get(name, 0) + number
    own = [episode_of(one, main) for one in results]
    episodes += [episode for episode in own if episode is not None]
    returns = [episode.episode_return for episode in episodes]
    return Played(sum(frames.values()), returns, tuple(results), frames, tuple(episodes))


def episode_of(result: GameResult, seat: str) -> PlayedEpisode | None:
    """Return a game as an episode of a policy: the mean return of the agents that it played, the
    length of the one that played longest, and as metrics their mean score, if they have some, and
    the means of what the environment or simulator said of them.

    Args:
        result: the game.
        seat: name of the policy.

    Returns:
        The episode; None: the policy played no agent.
    """
    seats = result.seats.items()  # of some games an agent has no part: it never came
    own = [agent for agent, name in seats if name == seat and agent in result.returns]
    if not own:
        return None
    scores = [result.scores[agent] for agent in own if agent in result.scores]
    told: dict[str, list[float]] = {"score": scores} if scores else {}
    for agent in own:
        for name, value in result.metrics.get(agent, {}).items():
            told.setdefault(name, []).append(value)
    return PlayedEpisode(
        sum(result.returns[agent] for agent in own) / len(own),
        max(result.lengths[agent] for agent in own),
        {name: sum(values) / len(values) for name, values in told.items()},
    )
