"""The capacity model: from unit costs, what many machines do and which part of bray limits them.

It is arithmetic alone. Every resource of a run has an amount, such as cores or bytes a second, of
which a rate of frames takes `fixed + per_frame × frames/s`. The rate at which it is used up is the
resource's limit; the lowest limit is the run's, and that resource the bottleneck. (A frame is one
step of an agent.)

The model has players on every core that nothing else needs, each with the policy in its own
process; buffer and trainer on `training_machines`; experience over a connection from each player
to each buffer's process; weights down a tree of relays, once a machine; gradients averaged by the
ranks after each step; one driver that asks every player for metrics and for what it played.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import NamedTuple

from bray_core.errors import ConfigError
from bray_core.settings.ranges import (
    NonNegativeFloat,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    check_fields,
)
from bray_model.distributed.relays import WIDTH

MAX_CONNECTIONS = 1024
"""Number of players of other machines that a process of the buffer lets connect."""
MAX_PROCESSES = 4096
"""Number of processes that the hub of metrics lets join."""
_BYTES_OF_A_GBIT = 1e9 / 8
_US = 1e-6


@dataclass(frozen=True, kw_only=True, slots=True)
class UnitCosts:
    """What one unit of each kind of work takes, in µs of one core unless a line says otherwise."""

    environment_us: PositiveFloat
    """A frame's step of the environment."""
    inference_us: NonNegativeFloat
    """A frame's share of the policy's forward."""
    recording_us: NonNegativeFloat
    """The rest of a player's frame: drawing actions, writing segments, handing them over."""
    training_us: PositiveFloat
    """Time of a training rank for each frame played: popping it and all passes over it."""
    gpu_training_us: PositiveFloat | None = None
    """Time of a rank on a GPU for each frame played; None: it was not measured."""
    segment_bytes: PositiveFloat
    """A frame's share of the bytes of the segments that hold it."""
    receiving_us: NonNegativeFloat
    """Time of the buffer's process for a frame from another machine."""
    weights_bytes: PositiveFloat
    """Bytes of a version of the policy; its gradient is as large."""
    publishes_per_s: NonNegativeFloat = 10.0
    """Versions a second that reach the players. More keep them closer to the trainer, and cost
    every player `adopting_us` and the network `weights_bytes` each."""
    adopting_us: NonNegativeFloat
    """Time of a player to take a version over."""
    frames_per_step: PositiveFloat
    """Frames played for each step of a rank's optimiser."""
    reducing_us: NonNegativeFloat
    """Wait of each step while two ranks on cores average their gradients."""
    gpu_reducing_us: NonNegativeFloat = 300.0
    """Wait of each step while two ranks on GPUs of one machine do so: an assumption."""
    driver_us: NonNegativeFloat = 1700.0
    """Time of the driver for a player and second: metrics, and four calls for what it played."""
    lockstep: bool = False
    """Whether players wait while the ranks train, and these while they play."""

    def __post_init__(self) -> None:
        check_fields(self)
        if self.adopting_us * self.publishes_per_s >= 1e6:
            raise ConfigError(
                f"publishes_per_s: expected less than {1e6 / self.adopting_us:g}, which a player "
                f"could just take over (adopting_us), got {self.publishes_per_s:g}"
            )

    @property
    def playing_us(self) -> float:
        """Time of the core that plays it, for a frame."""
        return self.environment_us + self.inference_us + self.recording_us


@dataclass(frozen=True, kw_only=True, slots=True)
class Machines:
    """The machines that there are, all alike."""

    count: PositiveInt = 1
    """Number of machines."""
    cores: PositiveInt = 1
    """Number of cores of each machine."""
    gpus: NonNegativeInt = 0
    """Number of GPUs of each machine; with any, ranks train on them."""
    network_gbit: PositiveFloat = 10.0
    """Gbit/s of each machine's link, in each direction."""
    ranks: PositiveInt = 1
    """Number of the trainer's ranks, one core or GPU each. More train faster, and each step waits
    longer for the mean of their gradients."""
    training_machines: PositiveInt = 1
    """Number of machines with the ranks and the buffer. bray puts all of a buffer on the driver's
    machine: more than one is a prediction of what would be, were the buffer shared out."""

    def __post_init__(self) -> None:
        check_fields(self)
        if self.training_machines > self.count:
            raise ConfigError(
                f"training_machines: expected at most count={self.count}, "
                f"got {self.training_machines}"
            )
        room = self.training_machines * (self.gpus or self.cores)
        if self.ranks > room:
            raise ConfigError(
                f"ranks: expected at most the {room} {'GPUs' if self.gpus else 'cores'} of "
                f"training_machines={self.training_machines}, got {self.ranks}"
            )


class Resource(NamedTuple):
    """A resource that a run uses up, such as the cores of a machine or the bytes of a link."""

    name: str
    amount: float
    """Amount that there is, in `unit`."""
    unit: str
    fixed: float
    """Amount that is taken at any rate."""
    per_frame: float
    """Amount that each frame a second takes."""
    is_soft: bool = False
    """Whether playing goes on where it is used up; metrics are then late, or lost."""

    def needed(self, frames_per_s: float) -> float:
        """Return how much of `unit` a rate takes."""
        return self.fixed + self.per_frame * frames_per_s

    def load(self, frames_per_s: float) -> float:
        """Return the share of the amount that a rate takes; above 1 it is not to be had."""
        return self.needed(frames_per_s) / self.amount

    @property
    def limit(self) -> float:
        """Frames/s at which all is taken; infinite where frames take nothing."""
        if self.fixed >= self.amount:
            return 0.0
        return (self.amount - self.fixed) / self.per_frame if self.per_frame else math.inf


@dataclass(frozen=True, kw_only=True, slots=True)
class CapacityPrediction:
    """Frames/s that machines reach, and what keeps them from more."""

    frames_per_s: float
    bottleneck: str
    """Name of the resource that is used up first, among those that are not soft."""
    parts: tuple[Resource, ...]
    """All resources, the lowest limit first."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Requirements:
    """What must be there for a rate."""

    players: int
    """Number of players, one a core."""
    ranks: int
    training_machines: int
    """Number of machines for the ranks, and for the links that their experience comes by."""
    machines: int
    """Number of machines for the cores of all parts, those that train included."""
    cores: int
    """Number of cores of players, ranks on cores, receiving and driver."""
    buffer_workers: int
    experience_gbit: float
    """Gbit/s from players to the buffer, all of it."""
    weights_gbit: float
    """Gbit/s of versions out of one machine."""
    driver_cores: float
    broken: tuple[str, ...]
    """Resources of the given machines that the rate is too much for: what breaks first is first."""


def capacity(costs: UnitCosts, machines: Machines) -> CapacityPrediction:
    """Return the frames/s that machines reach, and the resource that keeps them from more.

    Raises:
        ConfigError: ranks are to train on GPUs, and what that takes is not known.
    """
    parts = tuple(sorted(resources_of(costs, machines), key=lambda part: part.limit))
    first = next(part for part in parts if not part.is_soft)
    return CapacityPrediction(frames_per_s=first.limit, bottleneck=first.name, parts=parts)


def growth(
    costs: UnitCosts, machines: Machines, counts: Iterable[int]
) -> dict[int, CapacityPrediction]:
    """Return the prediction for each number of machines, all else as it is."""
    return {count: capacity(costs, replace(machines, count=count)) for count in counts}


def needs(costs: UnitCosts, machines: Machines, frames_per_s: float) -> Requirements:
    """Return what must hold for a rate, on machines of this kind however many it takes.

    Args:
        costs: Unit costs.
        machines: Cores, GPUs and links of each machine; and, for `broken`, their number and ranks.
        frames_per_s: Rate that is wanted.

    Raises:
        ConfigError: `capacity` would refuse these, or `frames_per_s` is not above 0.
    """
    if not 0 < frames_per_s < math.inf:
        raise ConfigError(f"frames_per_s: expected more than 0, got {frames_per_s}")
    parts = resources_of(costs, machines)
    broken = [part for part in parts if part.limit < frames_per_s]
    ranks = _ranks(costs, machines, frames_per_s)
    players = _players(costs) * frames_per_s
    receiving = costs.receiving_us * _US * frames_per_s
    driver = costs.driver_us * _US * players
    experience = costs.segment_bytes * frames_per_s / _BYTES_OF_A_GBIT
    training = max(
        math.ceil(ranks / (machines.gpus or machines.cores)),
        math.ceil(experience / machines.network_gbit),
    )
    cores = math.ceil(players + ranks + receiving + driver)
    count = max(math.ceil(cores / machines.cores), training)
    return Requirements(
        players=math.ceil(players),
        ranks=ranks,
        training_machines=training,
        machines=count,
        cores=cores,
        buffer_workers=max(ranks, math.ceil(receiving)),
        experience_gbit=experience,
        weights_gbit=_fan_out(count) * _weights_per_s(costs) / _BYTES_OF_A_GBIT,
        driver_cores=driver,
        broken=tuple(part.name for part in sorted(broken, key=lambda part: part.limit)),
    )


def resources_of(costs: UnitCosts, machines: Machines) -> list[Resource]:
    """Return the resources of a run on these machines.

    Raises:
        ConfigError: ranks are to train on GPUs, and what that takes is not known.
    """
    count, training = machines.count, machines.training_machines
    away = (count - training) / count  # players are shared out over all machines alike
    link, weights = machines.network_gbit * _BYTES_OF_A_GBIT, _weights_per_s(costs)
    rank = _rank_us(costs, machines) * _US
    players = _players(costs)
    receiving = costs.receiving_us * _US * away
    driver = costs.driver_us * _US * players
    on_cores = rank if not machines.gpus else 0.0
    fed = machines.ranks if machines.gpus else 0  # each GPU has a process that feeds it
    beside = on_cores + receiving + driver
    experience, gradients = costs.segment_bytes * away, _gradients_per_frame(costs, machines)
    relayed = _fan_out(count) * weights if count - 1 > WIDTH else 0.0
    unit = "GPUs" if machines.gpus else "cores"
    found = [
        Resource("cores of all machines", count * machines.cores, "cores", fed, players + beside),
        Resource("training ranks", machines.ranks, unit, 0.0, rank),
        Resource("cores of the trainer's machine", training * machines.cores, "cores", fed, beside),
        Resource("buffer workers", machines.ranks, "cores", 0.0, receiving),
        Resource("driver", 1, "cores", 0.0, driver, is_soft=True),
        Resource("processes of the hub", MAX_PROCESSES, "players", 0.0, players, is_soft=True),
    ]
    if costs.lockstep:
        turn = players / (count * machines.cores) + rank / machines.ranks
        found.append(Resource("turns of players and trainer", 1, "s of each s", 0.0, turn))
    if count == 1:
        return found
    into = experience + gradients
    return [
        *found,
        Resource("network into the trainer's machine", training * link, "bytes/s", 0.0, into),
        Resource(
            "network out of the trainer's machine",
            training * link,
            "bytes/s",
            _fan_out(count) * weights,
            gradients,
        ),
        Resource(
            "network out of a player's machine",
            link,
            "bytes/s",
            relayed,
            costs.segment_bytes / count,
        ),
        Resource("connections of the buffer", MAX_CONNECTIONS, "players", 0.0, players * away),
    ]


def _players(costs: UnitCosts) -> float:
    """Return the cores that play, for each frame a second."""
    return costs.playing_us * _US / (1 - costs.adopting_us * _US * costs.publishes_per_s)


def _rank_us(costs: UnitCosts, machines: Machines) -> float:
    """Return the time of a rank for each frame it trains on, with its share of averaging."""
    own = costs.gpu_training_us if machines.gpus else costs.training_us
    if own is None:
        raise ConfigError(
            f"gpu_training_us: is not known, and needed for gpus={machines.gpus}: "
            "measure on a GPU, give it, or plan without GPUs"
        )
    return own + _averaging_us(costs, machines) / costs.frames_per_step


def _averaging_us(costs: UnitCosts, machines: Machines) -> float:
    """Return how long the ranks wait in each step; two of them send their gradients once."""
    ranks, training = machines.ranks, machines.training_machines
    here = costs.gpu_reducing_us if machines.gpus else costs.reducing_us
    across = costs.weights_bytes / (machines.network_gbit * _BYTES_OF_A_GBIT) / _US
    return here * 2 * (ranks - 1) / ranks + across * 2 * (training - 1) / training


def _with_ranks(machines: Machines, ranks: int) -> Machines:
    """Return as many machines as so many ranks fill."""
    training = math.ceil(ranks / (machines.gpus or machines.cores))
    count = max(machines.count, training)
    return replace(machines, ranks=ranks, training_machines=training, count=count)


def _ranks(costs: UnitCosts, machines: Machines, frames_per_s: float) -> int:
    """Return the ranks that a rate takes: each more makes the others wait a little longer."""
    ranks, wanted = 0, 1
    while wanted > ranks:
        ranks = wanted
        there = _with_ranks(machines, ranks)
        wanted = math.ceil(frames_per_s * _US * _rank_us(costs, there))
    return ranks


def _gradients_per_frame(costs: UnitCosts, machines: Machines) -> float:
    """Return the bytes that the trainer's machines exchange, all together, for each frame."""
    steps = 1 / (machines.ranks * costs.frames_per_step)
    return 2 * (machines.training_machines - 1) * costs.weights_bytes * steps


def _weights_per_s(costs: UnitCosts) -> float:
    return costs.weights_bytes * costs.publishes_per_s


def _fan_out(count: int) -> int:
    """Return the machines that one sends each version to."""
    return min(WIDTH, count - 1)
