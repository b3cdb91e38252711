"""Simulators of one's own as a source: started by bray or external, spaces declared or told."""

from __future__ import annotations

import contextlib
import hashlib
import json
import sys
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import ball_game
import numpy as np
import pytest
import torch
from ball_game import SPACES
from ports import free_port

import bray
from bray.goal import Goal, Outcome
from bray.sources import simulator_evaluation, simulator_spaces
from bray.sources.config import GamecoreSourceConfig, ServingActorConfig
from bray.sources.simulator_spaces import Lobby
from bray.training.algorithm import load_algorithm
from bray_actor.gamecores import process_fleet
from bray_actor.policy.session_start import SessionStart
from bray_core.errors import BrayError, ConfigError, DeadlineError, ServiceError
from bray_core.remote.restart_limit import RestartLimit

pytestmark = pytest.mark.usefixtures("undrained")

GAME = f"{sys.executable} {Path(__file__).with_name('ball_game.py')} --port {{port}}"
LANES = " --seed {seed} --lanes {lanes} --first-lane {first_lane}"
PPO: dict[str, Any] = {
    "hidden": (8,),
    "segment_length": 16,
    "steps_per_replay": 96,
    "epochs": 1,
    "minibatch_size": 32,
}
OFF_POLICY: dict[str, Any] = {
    "hidden": (8,),
    "capacity": 1000,
    "warmup_frames": 96,
    "batch_size": 16,
    "steps_per_collect": 8,
    "replays_per_collect": 4,
}
GOAL = Goal(max_frames=192, evaluation_episodes=10)


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def train(folder: Path, name: str, settings: dict[str, Any], **source: Any) -> tuple[Outcome, Any]:
    """Train for two updates or more; return the outcome and the weights."""
    with bray.init(folder, "trial") as run:
        algorithm = load_algorithm(name).of("", **settings, **source)
        outcome = algorithm.train(run, goal=replace(GOAL, max_frames=192), seed=3)
        return outcome, run.models["policy"].weights()[1]


def digest(weights: Any) -> str:
    found = hashlib.sha256()
    for name in sorted(weights):
        found.update(np.ascontiguousarray(weights[name]).tobytes())
    return found.hexdigest()


@contextlib.contextmanager
def playing(*arguments: str) -> Iterator[None]:
    """Let an external simulator play in a thread, until the server is gone."""
    thread = threading.Thread(target=ball_game.main, args=(list(arguments),))
    thread.start()
    yield
    thread.join()


class TestSettings:
    @pytest.mark.parametrize(
        ("settings", "message"),
        [
            ({}, "environment: missing: expected a Gymnasium id, or the `command`"),
            ({"command": "./game", "external": True}, "external: expected one of environment"),
            ({"environment": "CartPole-v1", "command": "./game"}, "command: expected one of"),
            ({"environment": "CartPole-v1", "lanes": 4}, "lanes: .*: write `num_envs`"),
            ({"environment": "CartPole-v1", "spaces": SPACES}, "spaces: expected with `command`"),
            ({"command": "./game {prot}"}, "command: unknown name {prot}, did you mean 'port'"),
            ({"command": "./game", "spaces": {}}, "spaces: .* expected observation and action"),
            (
                {"external": True, "spaces": {**SPACES, "action": {"discreet": 3}}},
                "spaces: action/discreet: expected a mapping",
            ),
        ],
    )
    def test_wrong_ones_are_refused(self, settings: dict[str, Any], message: str) -> None:
        with pytest.raises(ConfigError, match=message):
            GamecoreSourceConfig(**settings)

    def test_a_simulator_has_processes_and_lanes(self) -> None:
        source = GamecoreSourceConfig(command="./game {port}", count=2, lanes=4)

        assert (source.num_processes, source.num_envs, source.title) == (2, 4, "game")

    def test_external_ones_are_answered_by_one_worker(self) -> None:
        with pytest.raises(ConfigError, match=r"actor.num_workers: expected 1 for external"):
            load_algorithm("dqn").of("", external=True, num_workers=2)


class TestStartedByBray:
    def test_a_run_repeats_if_sessions_name_their_lanes(self, tmp_path: Path) -> None:
        source = {"command": GAME + LANES, "count": 2, "lanes": 3, "spaces": SPACES}

        runs = [train(tmp_path / str(i), "ppo", PPO, **source)[1] for i in range(2)]

        assert digest(runs[0]) == digest(runs[1])

    @pytest.mark.parametrize("name", ["impala", "dqn"])
    def test_one_that_tells_its_spaces_is_asked_once(self, tmp_path: Path, name: str) -> None:
        settings = OFF_POLICY if name == "dqn" else {"hidden": (8,), "segment_length": 8}
        command = GAME + LANES

        telling = f"{command} --tell 1 --phase {{phase}}"
        outcome, _ = train(tmp_path, name, settings, command=telling, lanes=4)
        told = json.loads((tmp_path / "trial" / "spaces.json").read_text())

        assert told == SPACES
        assert len(outcome.episode_returns) == 10
        assert set(outcome.episode_returns) <= {-1.0, 1.0}

        again, _ = train(tmp_path, name, settings, command=command, lanes=4)
        assert again.frames >= outcome.frames

    def test_one_with_memory(self, tmp_path: Path) -> None:
        source = {"command": GAME + LANES, "lanes": 2, "spaces": SPACES}

        outcome, _ = train(tmp_path, "ppo", {**PPO, "memory_size": 4}, **source)

        assert outcome.frames >= 192

    def test_one_whose_spaces_differ_from_those_declared_says_so(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(process_fleet, "_LIMIT", RestartLimit(max_restarts=0, window_s=60.0))
        declared = {**SPACES, "observation": {"shape": [4]}}

        with pytest.raises(BrayError, match=r"bad_spaces: observation: .* of 4 .* of 3 "):
            train(tmp_path, "ppo", PPO, command=GAME + " --tell 1", spaces=declared)

    def test_one_that_starts_no_session_is_said_to_be_waited_for(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        monkeypatch.setattr(simulator_spaces, "_SAYS_S", 0.0)
        monkeypatch.setattr(simulator_spaces, "_FIRST_START_S", 0.6)

        with pytest.raises(DeadlineError, match="expected a `start` that tells spaces within"):
            train(tmp_path, "ppo", PPO, command="sleep 100")

        said = capsys.readouterr().out
        assert said.count("waits for the first start of sleep 100, which tells its spaces") == 1


class TestExternal:
    @pytest.mark.parametrize("mode", ["--unnamed", "--one-by-one"])
    def test_sessions_take_the_rows_that_are_free(self, tmp_path: Path, mode: str) -> None:
        """Also where a simulator ticks its sessions one after the other."""
        port = free_port()
        address = f"tcp://127.0.0.1:{port}"

        with playing("--address", address, "--lanes", "3", "--tell", "1", mode, "1"):
            outcome, _ = train(tmp_path, "ppo", PPO, external=True, lanes=3, port=port)

        assert outcome.frames >= 192

    def test_tagged_sessions_evaluate(self, tmp_path: Path) -> None:
        port = free_port()
        address = f"tcp://127.0.0.1:{port}"
        tagged = ["--address", address, "--lanes", "2", "--phase", "evaluation", "--unnamed", "1"]

        trained = ["--address", address, "--lanes", "4", "--tell", "1"]
        with playing(*trained), playing(*tagged, "--tell", "1"):
            outcome, _ = train(tmp_path, "dqn", OFF_POLICY, external=True, lanes=4, port=port)

        assert len(outcome.episode_returns) == 10

    def test_without_an_evaluation_of_its_own_the_training_returns_decide(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        monkeypatch.setattr(simulator_evaluation, "_SILENT_S", 0.0)
        port = free_port()

        with playing("--address", f"http://127.0.0.1:{port + 1}"):
            outcome, _ = train(tmp_path, "dqn", OFF_POLICY, external=True, port=port, spaces=SPACES)

        said = capsys.readouterr().out
        assert f"simulators connect to tcp://127.0.0.1:{port} (bray's frames" in said
        assert f"POST http://127.0.0.1:{port + 1}/step" in said
        assert "else the returns of training decide" in said
        assert "episodes of training" in said
        assert outcome.episode_returns


class TestLobby:
    def test_the_first_start_tells_and_is_asked_to_come_again(self) -> None:
        lobby = Lobby()

        with pytest.raises(ServiceError, match="not_ready"):
            lobby.hear("one", SessionStart(spaces=SPACES))
        with pytest.raises(ServiceError, match=r"bad_spaces: action: .*one of 3.*one of 4"):
            lobby.hear("two", SessionStart(spaces={**SPACES, "action": {"discrete": 4}}))
        told = lobby.wait(0)

        assert told is not None
        assert told.described() == SPACES

    @pytest.mark.parametrize(
        ("spaces", "message"),
        [
            (None, "spaces: missing"),
            ({"observation": {"shape": [3]}}, "expected observation and action"),
            ({**SPACES, "observation": {"shape": [1 << 24]}}, "at most 16,777,216 bytes"),
            ({**SPACES, "action": {"discrete": 1 << 40}}, "at most 65,536 values"),
            ({**SPACES, "observation": {"shape": [1 << 19]}}, "observation: .* 262,144 numbers"),
            ({**SPACES, "action": {"a": {"shape": [1 << 19]}}}, "action: .* 262,144 numbers"),
            (
                {**SPACES, "observation": {"shape": [2048, 2048, 3], "dtype": "uint8"}},
                "observation: expected at most 1,048,576 pixels, got 12,582,912: declare",
            ),
        ],
    )
    def test_what_it_may_claim_has_bounds(self, spaces: Any, message: str) -> None:
        lobby = Lobby()

        with pytest.raises(ServiceError, match=f"bad_spaces: .*{message}"):
            lobby.hear("one", SessionStart(spaces=spaces))

        assert lobby.wait(0) is None


def test_ports_of_external_simulators_are_fixed() -> None:
    from bray.sources.simulator_ports import SimulatorPorts

    external = GamecoreSourceConfig(external=True)
    command = GamecoreSourceConfig(command="./game {http_port}")

    assert SimulatorPorts.of(external, ServingActorConfig()) == (7300, 7301)
    assert SimulatorPorts.of(external, ServingActorConfig(port=9000)) == (9000, 9001)
    assert SimulatorPorts.of(command, ServingActorConfig()) == (0, 0)
