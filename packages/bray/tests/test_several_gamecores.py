"""Several policies over the wire as a source: turns of all, results of matches, opponents."""

from __future__ import annotations

import contextlib
import random
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
from race_game import DESCRIBED, SPACES, Race

import bray
from bray.games.scripted_model import ScriptedModel
from bray.policies.config import NetworkConfig
from bray.policies.networks import example_inputs, make_policy
from bray.sources.config import GamecoreSourceConfig, ServingActorConfig
from bray.sources.wire.gamecore_play import GamecorePlay
from bray.sources.wire.seat_plan import SeatPlan
from bray.sources.wire.several_gamecores import WorkerSeats, several_gamecores
from bray.training.on_policy import segment_layout
from bray_actor import PolicyConfig
from bray_actor.gamecores.multi_agent_gamecore import play_matches
from bray_actor.multi_agent.making import MultiAgentSpec
from bray_actor.multi_agent.seat import Cast, Seat
from bray_buffer import BufferConfig
from bray_core.errors import BrayError, ConfigError, ServiceError
from bray_model import ModelConfig
from bray_server import ServerThread

pytestmark = pytest.mark.usefixtures("undrained")

GAMES = MultiAgentSpec(environment=f"{Path(__file__).with_name('race_game.py')}:Race").to_json()
QUOTAS: dict[str, int | None] = {"red": 24, "blue": 40}


class Threads:
    """The gamecores of a fleet as threads; they end with the server."""

    def __init__(self, games: str, addresses: Callable[[], Sequence[str]], **options: Any) -> None:
        self.pids: list[int] = []
        self._addresses = addresses
        self._count = options["num_processes"]
        self._lanes = options["lanes"]

    def start(self) -> None:
        self.pids = list(range(self._count))
        (address,) = self._addresses()
        for index in self.pids:
            Thread(target=self._play, args=(address, index * self._lanes)).start()

    def _play(self, address: str, first: int) -> None:
        with contextlib.suppress(ServiceError):
            play_matches(Race, address, lanes=self._lanes, lane_offset=first)

    def check(self) -> None: ...

    def stop(self) -> None: ...


@pytest.fixture
def threads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        bray.Run, "game_processes", lambda run, *args, **options: Threads(*args, **options)
    )


def plans(
    run: bray.Run, quotas: Mapping[str, int | None], capacity: int = 1000
) -> dict[str, SeatPlan]:
    """Return a seat for each agent."""
    found = {}
    for name, quota in quotas.items():
        model = run.model(
            name,
            make_policy(SPACES, NetworkConfig(hidden=(8,)), 1),
            example_inputs(SPACES, 0),
            ModelConfig(max_batch_size=8),
        )
        buffer: Any = run.buffer(
            f"{name}-experience",
            segment_layout(SPACES, 8, 0),
            BufferConfig(batch_steps=quota or 8, capacity=capacity, when_full="block"),
        )
        config = PolicyConfig(spaces=DESCRIBED)
        found[name] = SeatPlan(name, model, config, buffer, quota)
    return found


def play_of(num_processes: int = 2, num_workers: int = 1) -> GamecorePlay:
    source = GamecoreSourceConfig(environment="race", num_envs=2, num_processes=num_processes)
    actor = ServingActorConfig(num_workers=num_workers)
    return GamecorePlay(source=source, actor=actor, policy=PolicyConfig(), games=GAMES)


class Opponents:
    """One of the agents learns, the other is whoever the driver says."""

    def __init__(self, learners: Mapping[str, Seat]) -> None:
        self._learner = learners["main"]
        self.tell("v1")

    def draw(self, generator: random.Random) -> Mapping[str, Seat]:
        sides = [self._learner, self._opponent]
        generator.shuffle(sides)
        return {"red": sides[0], "blue": sides[1]}

    def tell(self, news: Any) -> None:
        config = PolicyConfig(spaces=DESCRIBED)
        self._opponent = Seat(name=news, model=self._learner.model, config=config)


def opponents(learners: Mapping[str, Seat]) -> Cast:
    return Opponents(learners)


@pytest.mark.usefixtures("threads")
class TestLocal:
    def test_a_turn_ends_with_the_first_policy_that_has_its_steps(self, tmp_path: Path) -> None:
        with bray.init(tmp_path, "turns") as run:
            seats = plans(run, QUOTAS)
            source = several_gamecores(run, play_of(), {"r*": seats["red"], "*": seats["blue"]})
            assert source.poll()[:2] == (0, [])
            frames, results, returns = {"red": 0, "blue": 0}, [], []
            for _ in range(5):
                source.collect(1000)
                played = source.poll()
                assert played.frames == sum(played.frames_by_seat.values())
                for name, steps in played.frames_by_seat.items():
                    frames[name] += steps
                assert any(frames[n] and frames[n] % q == 0 for n, q in QUOTAS.items() if q)
                results += played.results
                returns += played.returns
            assert frames["red"] >= 3 * 24
            assert results
            for result in results:
                assert result.seats == {"red": "red", "blue": "blue"}
                assert sorted(result.returns.values()) == [-1.0, 1.0]
            assert len(returns) >= 2 * len(results)
            for name in QUOTAS:
                stats: Any = seats[name].buffer.stats()  # type: ignore[attr-defined]
                assert stats["queued_steps"] == frames[name]

    def test_without_quotas_it_ends_with_the_steps_of_all_lanes(self, tmp_path: Path) -> None:
        with bray.init(tmp_path, "steps") as run:
            source = several_gamecores(run, play_of(), plans(run, {"red": None, "blue": None}))
            source.poll()
            for steps in (3, 10):
                source.collect(steps)
                assert source.poll().frames == 4 * steps

    def test_an_opponent_is_no_part_of_the_frames(self, tmp_path: Path) -> None:
        with bray.init(tmp_path, "matches") as run:
            seats = {"*": plans(run, {"main": 64})["main"]}
            source = several_gamecores(run, play_of(), seats, opponents)
            source.poll()
            source.collect(1000)
            played = source.poll()
            assert played.frames_by_seat == {"main": 64}
            assert {*played.results[0].seats.values()} == {"main", "v1"}
            source.tell("v2")
            for _ in range(3):
                source.collect(1000)
            last = source.poll().results[-1]
            assert {*last.seats.values()} == {"main", "v2"}
            assert source.lines() == []
            assert source.evaluate("main", seats["*"].model, 1) is None

    def test_a_script_plays_beside_who_learns_and_is_no_part_of_the_frames(
        self, tmp_path: Path
    ) -> None:
        with bray.init(tmp_path, "script") as run:
            stands = ScriptedModel("stands", SPACES, function=lambda seen, generator: 0)
            still = Seat(name="still", model=stands, config=PolicyConfig(spaces=DESCRIBED))
            seats = {"red": plans(run, {"red": 64})["red"], "*": still}
            source = several_gamecores(run, play_of(), seats)
            source.poll()
            for _ in range(2):
                source.collect(1000)
            played = source.poll()
            assert played.frames_by_seat == {"red": 128}
            assert played.results
            assert {(*one.seats.items(),) for one in played.results} == {
                (("red", "red"), ("blue", "still"))
            }
            assert max(played.returns) == 1.0, "who stands still loses"

    def test_a_buffer_without_room_for_a_turn_is_told_of(self, tmp_path: Path) -> None:
        with bray.init(tmp_path, "full") as run:
            seats = plans(run, {"red": 400, "blue": None}, capacity=4)
            source = several_gamecores(run, play_of(), seats)
            source.poll()
            with pytest.raises(BrayError, match=r"buffer of red: has room for 4 of the .* raise"):
                source.collect(1000)

    def test_seats_are_checked(self, tmp_path: Path) -> None:
        with bray.init(tmp_path, "wrong") as run:
            with pytest.raises(ConfigError, match="seats: expected one or more patterns of agents"):
                several_gamecores(run, play_of(), {})
            alone = Seat(name="v1", model=plans(run, {"v": 8})["v"].model, config=PolicyConfig())
            with pytest.raises(ConfigError, match="seats: expected one that learns, got v1"):
                several_gamecores(run, play_of(), {"*": alone})
            seats = plans(run, {"red": 8, "blue": 8})
            twice = {"red": seats["red"], "blue": seats["blue"]._replace(name="red")}
            with pytest.raises(ConfigError, match="seats: blue: another seat is named 'red', too"):
                several_gamecores(run, play_of(), twice)


def test_a_worker_records_of_each_version_what_its_policy_wants(tmp_path: Path) -> None:
    """As on Ray, where the versions of each policy decide."""
    wanted = {"red": 24, "blue": 41}
    with bray.init(tmp_path, "worker") as run:
        seats = plans(run, wanted)
        worker = WorkerSeats(play_of(), seats, None, tmp_path, 1)
        server = ServerThread(worker)
        fleet = Threads(GAMES, lambda: server.worker_addresses, num_processes=2, lanes=2)
        fleet.start()
        frames, results = dict.fromkeys(seats, 0), []
        for version in (1, 2):
            until = time.monotonic() + 30
            while frames != {n: q * version for n, q in wanted.items()}:
                assert time.monotonic() < until, frames
                played = worker.poll()
                for name, steps in played.frames_by_seat.items():
                    frames[name] += steps
                results += played.results
                time.sleep(0.01)
            for plan in seats.values():
                model: Any = plan.model
                model.publish(model.weights()[1])
        worker.tell("nobody listens")
        server.close(drain_s=0.0)
    assert results


@pytest.mark.ray
@pytest.mark.timeout(600)
@pytest.mark.usefixtures("ray_cluster")
def test_workers_on_ray_play_matches(tmp_path: Path) -> None:
    """Real gamecore processes; each policy has its steps of a version, whatever the other has."""
    with bray.init(tmp_path, "trial", "ray") as run:
        seats = plans(run, {"red": 24, "blue": 41})
        with pytest.raises(ConfigError, match="seats: blue: expected a multiple of the 2 workers"):
            several_gamecores(run, play_of(num_workers=2), seats)
        source: Any = several_gamecores(run, play_of(1), seats)
        until = time.monotonic() + 60
        frames, results = dict.fromkeys(seats, 0), []
        while frames != {"red": 24, "blue": 41} and time.monotonic() < until:
            played = source.poll()
            for name, steps in played.frames_by_seat.items():
                frames[name] += steps
            results += played.results
            time.sleep(0.05)
        assert frames == {"red": 24, "blue": 41}
        assert results
        source.collect(1)
        source.tell("nobody listens")
        assert source.lines() == []
        source.close()
