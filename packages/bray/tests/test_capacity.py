"""The capacity model against figures worked out by hand."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest

from bray.planning.capacity import (
    MAX_CONNECTIONS,
    MAX_PROCESSES,
    CapacityPrediction,
    Machines,
    Resource,
    UnitCosts,
    capacity,
    growth,
    needs,
)
from bray_buffer.shared import socket_carrier
from bray_core.errors import ConfigError
from bray_core.metrics import hub

COSTS = UnitCosts(
    environment_us=300,
    inference_us=150,
    recording_us=50,  # a core plays 2,000 frames/s
    training_us=500,  # and trains as many
    segment_bytes=8_000,
    receiving_us=0,
    weights_bytes=1_000_000,
    publishes_per_s=0,
    adopting_us=0,
    frames_per_step=100,
    reducing_us=0,
    driver_us=0,
)
MANY = Machines(count=10, cores=10, network_gbit=8)
"""A link carries 1e9 bytes/s."""


def part(found: CapacityPrediction, name: str) -> Resource:
    return next(part for part in found.parts if part.name == name)


def test_one_core_takes_turns() -> None:
    found = capacity(COSTS, Machines())
    assert found.bottleneck == "cores of all machines"
    assert found.frames_per_s == pytest.approx(1_000)  # 500 + 500 µs


def test_two_cores_share_what_one_rank_leaves() -> None:
    quick = replace(COSTS, training_us=100)
    found = capacity(quick, Machines(cores=2))
    assert found.bottleneck == "cores of all machines"
    assert found.frames_per_s == pytest.approx(2e6 / 600)


def test_one_rank_limits_many_players() -> None:
    found = capacity(COSTS, MANY)
    assert found.bottleneck == "training ranks"
    assert found.frames_per_s == pytest.approx(2_000)
    assert part(found, "training ranks").load(1_000) == pytest.approx(0.5)


def test_ranks_wait_for_each_other() -> None:
    # Two ranks wait 20,000 µs a step of 100 frames: 200 µs a frame beside 500.
    found = capacity(replace(COSTS, reducing_us=20_000), replace(MANY, ranks=2))
    assert part(found, "training ranks").limit == pytest.approx(2e6 / 700)
    # Four send one and a half times as much.
    found = capacity(replace(COSTS, reducing_us=20_000), replace(MANY, ranks=4))
    assert part(found, "training ranks").limit == pytest.approx(4e6 / 800)


def test_the_cores_of_the_trainers_machine() -> None:
    # Its 10 ranks need 500 µs of its 10 cores; receiving nine frames in ten takes 90 more.
    found = capacity(replace(COSTS, receiving_us=100), replace(MANY, ranks=10))
    assert found.bottleneck == "cores of the trainer's machine"
    assert found.frames_per_s == pytest.approx(1e7 / 590)


def test_gpus_train_and_each_has_a_core_that_feeds_it() -> None:
    costs = replace(COSTS, gpu_training_us=5, gpu_reducing_us=0)
    found = capacity(costs, replace(MANY, gpus=2, ranks=2))
    assert part(found, "training ranks").limit == pytest.approx(2e6 / 5)
    assert found.bottleneck == "network into the trainer's machine"
    cores = part(found, "cores of all machines")
    assert (cores.fixed, cores.limit) == (2, pytest.approx(98 * 2_000))


def test_the_link_into_the_trainers_machine() -> None:
    costs = replace(COSTS, gpu_training_us=1, segment_bytes=20_000)
    found = capacity(costs, replace(MANY, gpus=1))
    assert found.bottleneck == "network into the trainer's machine"
    assert found.frames_per_s == pytest.approx(1e9 / (0.9 * 20_000))  # a tenth is played there


def test_ranks_of_two_machines_exchange_gradients() -> None:
    machines = replace(MANY, training_machines=2, gpus=1, ranks=2)
    found = capacity(replace(COSTS, gpu_training_us=1), machines)
    into = part(found, "network into the trainer's machine")
    assert into.amount == 2e9
    # 8,000 bytes of eight frames in ten; 2 MB a step of both ranks, of 200 frames.
    assert into.per_frame == pytest.approx(6_400 + 2e6 / 200)


def test_gradients_between_machines_take_their_time() -> None:
    # 1 MB there and back at 1e9 bytes/s is 1 ms a step of 100 frames, beside 300 µs on GPUs.
    costs = replace(COSTS, gpu_training_us=1, gpu_reducing_us=300)
    found = capacity(costs, replace(MANY, training_machines=2, gpus=1, ranks=2))
    assert part(found, "training ranks").limit == pytest.approx(2e6 / (1 + 3 + 10))


def test_weights_go_down_a_tree() -> None:
    costs = replace(COSTS, publishes_per_s=20)
    trainer, player = "network out of the trainer's machine", "network out of a player's machine"

    def sent(name: str, count: int) -> float:
        return part(capacity(costs, replace(MANY, count=count)), name).fixed

    assert [sent(trainer, count) for count in (3, 5, 100)] == [40e6, 80e6, 80e6]
    assert [sent(player, count) for count in (3, 5, 6, 100)] == [0, 0, 80e6, 80e6]


def test_weights_alone_can_fill_a_link() -> None:
    # 4 × 1 MB × 300/s are more than 1e9 bytes/s.
    found = capacity(replace(COSTS, publishes_per_s=300), MANY)
    assert (found.frames_per_s, found.bottleneck) == (0, "network out of the trainer's machine")


def test_experience_fills_a_players_link_only_after_the_trainers() -> None:
    found = capacity(COSTS, MANY)
    assert part(found, "network out of a player's machine").limit == pytest.approx(10e9 / 8_000)


def test_a_buffers_process_is_one_core() -> None:
    costs = replace(COSTS, receiving_us=200, gpu_training_us=1)
    found = capacity(costs, replace(MANY, gpus=1, network_gbit=100))
    assert found.bottleneck == "buffer workers"
    assert found.frames_per_s == pytest.approx(1e6 / (0.9 * 200))


def test_connections_bound_the_players() -> None:
    costs = replace(COSTS, gpu_training_us=0.1, segment_bytes=1)
    found = capacity(costs, Machines(count=100, cores=64, gpus=1))
    assert found.bottleneck == "connections of the buffer"
    assert found.frames_per_s == pytest.approx(1_024 / 0.99 * 2_000)


def test_a_driver_that_is_late_stops_nobody() -> None:
    found = capacity(replace(COSTS, driver_us=10_000, training_us=1), MANY)
    driver = part(found, "driver")
    assert driver.limit == pytest.approx(200_000)  # 100 players
    assert driver.is_soft
    slow = capacity(replace(COSTS, driver_us=100_000, training_us=1), MANY)
    assert part(slow, "driver").limit == pytest.approx(20_000)
    assert slow.bottleneck != "driver"
    assert slow.frames_per_s > 20_000


def test_the_hub_counts_players() -> None:
    hub_part = part(capacity(COSTS, MANY), "processes of the hub")
    assert hub_part.limit == pytest.approx(4_096 * 2_000)


def test_players_stop_to_take_weights_over() -> None:
    # 10 times a second 20 ms: a fifth of each player's time.
    costs = replace(COSTS, publishes_per_s=10, adopting_us=20_000, training_us=100)
    assert capacity(costs, Machines()).frames_per_s == pytest.approx(1e6 / (500 / 0.8 + 100))
    with pytest.raises(ConfigError, match="publishes_per_s: expected less than 10, which a player"):
        replace(costs, adopting_us=100_000)


def test_lockstep_waits_for_the_trainer() -> None:
    found = capacity(replace(COSTS, lockstep=True), MANY)
    assert found.bottleneck == "turns of players and trainer"
    assert found.frames_per_s == pytest.approx(1e6 / (5 + 500))


def test_growth_ends_where_a_part_is_used_up() -> None:
    costs = replace(COSTS, training_us=1, gpu_training_us=1)
    grown = growth(costs, replace(MANY, gpus=1), [1, 2, 100])
    assert [p.bottleneck for p in grown.values()] == [
        "cores of all machines",
        "cores of all machines",
        "network into the trainer's machine",
    ]
    assert grown[2].frames_per_s == pytest.approx(19 * 2_000)  # a core feeds the GPU


def test_what_a_rate_needs() -> None:
    costs = replace(COSTS, receiving_us=10, driver_us=1_000, publishes_per_s=10)
    found = needs(costs, MANY, 1e6)
    assert found.players == 500
    # Gradients cross 52 machines in 2 × 51/52 ms, a step of 100 frames: 19.6 µs beside 500.
    assert found.ranks == 520
    assert found.cores == 500 + 520 + 10 + 1  # half a core of the driver, rounded up
    assert found.driver_cores == pytest.approx(0.5)
    assert found.buffer_workers == 520
    assert found.experience_gbit == pytest.approx(64)
    assert found.training_machines == 52  # by cores; 8 by links
    assert found.machines == 104
    assert found.weights_gbit == pytest.approx(4 * 10 * 8e-3)
    assert found.broken == (
        "training ranks",
        "cores of the trainer's machine",
        "cores of all machines",
        "buffer workers",
        "network into the trainer's machine",
    )


def test_a_rate_on_gpus_needs_links() -> None:
    costs = replace(COSTS, gpu_training_us=1.5, gpu_reducing_us=0)
    found = needs(costs, replace(MANY, gpus=8), 1e6)
    assert (found.ranks, found.training_machines) == (2, 8)


def test_more_ranks_than_their_own_work_where_they_wait() -> None:
    found = needs(replace(COSTS, reducing_us=20_000), MANY, 4_000)
    # Two ranks do 2,857, three 3,913, four 5,000.
    assert found.ranks == 4


def test_what_fits_breaks_nothing() -> None:
    assert needs(COSTS, MANY, 1_000).broken == ()


def test_limits_are_those_of_the_code() -> None:
    assert socket_carrier._MAX_CONNECTIONS == MAX_CONNECTIONS
    assert hub._MAX_PROCESSES == MAX_PROCESSES


@pytest.mark.parametrize(
    ("kind", "change", "words"),
    [
        (COSTS, {"environment_us": 0}, "environment_us: expected more than 0, got 0"),
        (COSTS, {"training_us": -1}, "training_us: expected more than 0, got -1"),
        (COSTS, {"receiving_us": -1}, "receiving_us: expected 0 or more, got -1"),
        (COSTS, {"driver_us": math.nan}, "driver_us: expected 0 or more, got nan"),
        (COSTS, {"weights_bytes": "7"}, "weights_bytes: expected a number, got '7'"),
        (COSTS, {"gpu_training_us": 0}, "gpu_training_us: expected more than 0, got 0"),
        (MANY, {"count": 0}, "count: expected 1 or more, got 0"),
        (MANY, {"cores": 1.5}, "cores: expected a whole number, got 1.5"),
        (MANY, {"gpus": -1}, "gpus: expected 0 or more, got -1"),
        (MANY, {"network_gbit": 0}, "network_gbit: expected more than 0, got 0"),
        (MANY, {"training_machines": 11}, "training_machines: expected at most count=10, got 11"),
        (MANY, {"ranks": 11}, "ranks: expected at most the 10 cores of training_machines=1"),
        (MANY, {"gpus": 2, "ranks": 3}, "ranks: expected at most the 2 GPUs of"),
    ],
)  # fmt: skip
def test_nonsense_is_refused(kind: Any, change: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words.replace("(", r"\(")):
        replace(kind, **change)


def test_gpus_need_their_cost() -> None:
    with pytest.raises(ConfigError, match="gpu_training_us: is not known, and needed for gpus=1"):
        capacity(COSTS, Machines(gpus=1))


def test_a_rate_is_positive() -> None:
    with pytest.raises(ConfigError, match="frames_per_s: expected more than 0, got 0"):
        needs(COSTS, MANY, 0)
