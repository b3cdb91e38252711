"""A run over the wire repeats bit by bit, however many gamecores play and whichever is quicker."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
import torch
from bray.training.wire_loop import train_over_the_wire

import bray
from bray.sources.environments import Spaces
from bray.templates.template import load
from bray.training import wire
from bray.training.on_policy import segment_layout
from bray_actor import GamecoreFleet
from bray_actor.gamecores.gamecore import play
from bray_buffer import Buffer, BufferConfig
from bray_core.errors import ServiceError
from bray_model import Model, ModelConfig
from bray_server import Limits, ServerThread

UPDATES = 3


def digest(model: Any) -> str:
    """Return a digest of the published weights."""
    sha = hashlib.sha256()
    for name, array in sorted(model.weights()[1].items()):
        sha.update(name.encode() + array.tobytes())
    return sha.hexdigest()


def processes(template: Any, addresses: list[str]) -> Callable[[], None]:
    """Start gamecores as `bray train` does; return what ends them."""
    fleet = GamecoreFleet(
        "CartPole-v1",
        addresses,
        num_processes=template.wire.num_processes,
        envs_per_process=template.settings.num_envs,
        seed=template.seed,
    )
    fleet.start()
    return fleet.stop


def threads(template: Any, addresses: list[str]) -> Callable[[], None]:
    """Start the same gamecores as threads, which begin at once; they end with the servers."""

    def game(index: int) -> None:
        n = template.settings.num_envs
        address = addresses[index % len(addresses)]
        try:
            play("cartpole", address, num_envs=n, seed=template.seed, lane_offset=index * n)
        except ServiceError:
            pass

    games = [Thread(target=game, args=(i,)) for i in range(template.wire.num_processes)]
    for one in games:
        one.start()
    return lambda: None


def trained(
    num_processes: int,
    num_envs: int,
    start: Callable[[Any, list[str]], Callable[[], None]],
    num_workers: int = 1,
) -> str:
    """Train for a few updates; return a digest of the weights that were published last."""
    lanes = num_processes * num_envs
    steps = lanes * (256 // lanes)
    shape = [f"source.num_processes={num_processes}", f"source.num_envs={num_envs}"]
    shape += [f"actor.num_workers={num_workers}", f"trainer.steps_per_replay={steps}"]
    template = load("cartpole", [*shape, "trainer.epochs=2", "agent.segment_length=16"])
    template = replace(template, settings=replace(template.settings, trainer_threads=1))
    config, spaces = template.settings, Spaces.of("CartPole-v1")
    torch.manual_seed(0)
    with ExitStack() as undo:
        batching = ModelConfig(max_batch_size=lanes // num_workers)
        model = Model(wire.network(config, spaces, 1), spaces.example, config=batching)
        undo.callback(model.close)
        layout = segment_layout(spaces, config.segment_length, 0)
        queue = BufferConfig(batch_steps=steps, capacity=steps, when_full="block")
        buffer = Buffer(layout, queue)
        undo.callback(buffer.close)
        addresses = []
        for worker in range(num_workers):
            make = wire.make_actors(template, 1, model, buffer, Path(), worker=worker)
            server = ServerThread(make, limits=Limits(tick_timeout_s=60))
            undo.callback(partial(server.close, 0.0))
            addresses += server.addresses
        trainer = wire.make_trainer(template, 1, model, buffer, spaces, Path())
        trainer.directory = None
        undo.callback(start(template, addresses))
        trainer.run(UPDATES, checkpoint=False)
        assert model.version == UPDATES
        return digest(model)


@pytest.mark.isa
def test_six_gamecore_processes_of_one_environment_repeat() -> None:
    assert len({trained(6, 1, processes) for _ in range(2)}) == 1


@pytest.mark.isa
@pytest.mark.parametrize(
    ("num_processes", "num_envs", "num_workers"),
    [(1, 1, 1), (3, 1, 1), (2, 8, 1), (5, 3, 1), (6, 1, 1), (6, 1, 2), (4, 3, 4)],
)
def test_any_shape_repeats(num_processes: int, num_envs: int, num_workers: int) -> None:
    made = {trained(num_processes, num_envs, threads, num_workers) for _ in range(2)}
    assert len(made) == 1


def test_a_local_run_has_one_worker_whatever_is_asked_for(tmp_path: Path) -> None:
    """It answers for all of them, and each version plays the whole replay."""
    settings = ["source.num_processes=2", "source.num_envs=1", "trainer.steps_per_replay=64"]
    settings += ["actor.num_workers=2", "goal.max_frames=128", "goal.evaluation_episodes=1"]
    template = load("cartpole", settings)
    with bray.init(tmp_path, "two") as run:
        outcome = train_over_the_wire(run, template, seed=1)
    assert outcome.frames == 128
    assert outcome.version == 2
