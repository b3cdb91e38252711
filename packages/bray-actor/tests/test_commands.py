from __future__ import annotations

import argparse
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bray_actor import PolicyActor, PolicyConfig
from bray_actor.commands import DEFAULT_ADDRESS, play
from bray_core.cli import main
from bray_core.errors import BrayError, ConfigError, ServiceError
from bray_core.protocols import Answer
from bray_server import ServerThread


class Left:
    version = 0

    async def infer(self, observation: Any, batch: bool = False) -> Answer:
        return Answer({"logits": np.array([9, 0], np.float32)}, 0)


def run(*arguments: str) -> int:
    parser = argparse.ArgumentParser()
    play.add_arguments(parser)
    return play.run(parser.parse_args(arguments))


def serve(**options: Any) -> ServerThread:
    return ServerThread(PolicyActor.factory(Left(), PolicyConfig()), **options)  # type: ignore[arg-type]


def test_it_prints_what_the_episodes_returned(capsys: pytest.CaptureFixture[str]) -> None:
    server = serve(http_port=0)
    for address in server.addresses:
        assert run("cartpole", "--address", address, "--episodes", "5", "--num-envs", "2") == 0
        printed = capsys.readouterr().out
        found = re.fullmatch(
            r"cartpole: mean return ([\d.]+) over 5 episodes "
            r"\(lowest ([\d.]+), highest ([\d.]+)\)\n",
            printed,
        )
        assert found is not None, printed
        mean, lowest, highest = map(float, found.groups())
        assert 8 <= lowest <= mean <= highest <= 12
    server.close()


def test_a_trial_says_how_its_environment_is_made(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "config.yaml").write_text(
        "algorithm: ppo\nsource: {environment: CartPole-v1, max_episode_steps: 3, num_envs: 9}\n"
    )
    server = serve()
    arguments = (str(tmp_path), "--address", server.addresses[0], "--episodes", "2")
    assert run(*arguments) == 0
    assert capsys.readouterr().out == (
        "CartPole-v1: mean return 3.0 over 2 episodes (lowest 3.0, highest 3.0)\n"
    )
    assert main(["play", *arguments, "max_episode_steps=4"]) == 0, "settings stand anywhere"
    assert "mean return 4.0" in capsys.readouterr().out
    server.close()
    for algorithm, source in (
        ("ppo", "{environment: CartPole-v1, external: true}"),
        ("ppo", "{kind: agents, environment: x}"),
        ("alphazero", "{environment: tic-tac-toe}"),
    ):
        (tmp_path / "config.yaml").write_text(f"algorithm: {algorithm}\nsource: {source}\n")
        with pytest.raises(
            ConfigError, match=r"was not trained in a Gymnasium environment.*`bray watch /.*` plays"
        ):
            run(*arguments)


@pytest.mark.parametrize("game", ["bray:tic-tac-toe", "open_spiel:hex(board_size=3)"])
def test_a_game_of_several_agents_is_watched_instead(game: str) -> None:
    with pytest.raises(ConfigError, match=r"does not seat: `bray watch TRIAL` plays it"):
        run(game)


def test_nobody_there_is_said_with_the_cure() -> None:
    with pytest.raises(BrayError, match=r"127\.0\.0\.1:1.*start a server with `bray serve TRIAL`"):
        run("cartpole", "--address", "tcp://127.0.0.1:1")
    assert DEFAULT_ADDRESS == "tcp://127.0.0.1:7300"


def test_a_token_comes_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    server = serve(tokens=["secret"])
    arguments = ("cartpole", "--address", server.addresses[0], "--episodes", "1")
    with pytest.raises(ServiceError, match="unauthorized"):
        run(*arguments)
    monkeypatch.setenv("BRAY_TOKEN", "secret")
    assert run(*arguments) == 0
    server.close()


def test_unknown_environments_are_named() -> None:
    with pytest.raises(ConfigError, match="unknown 'cartpol', did you mean 'cartpole'"):
        run("cartpol")
