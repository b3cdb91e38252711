"""Environments of several agents over the wire: gamecores that are real processes, real games."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Mapping
from contextlib import closing
from typing import Any

import numpy as np
import pytest

from bray_actor import PolicyActor, PolicyConfig
from bray_actor.gamecores import gamecore_process, multi_agent_gamecore
from bray_actor.gamecores.multi_agent_fleet import MultiAgentFleet
from bray_actor.gamecores.multi_agent_gamecore import play_matches
from bray_actor.multi_agent.environment import AgentTick
from bray_actor.multi_agent.making import MultiAgentSpec
from bray_actor.multi_agent.match_table import MatchTable
from bray_actor.multi_agent.seat import FixedCast, Seat
from bray_actor.policy.session_router import RoutedSeat, SessionRouter
from bray_core import codec
from bray_core.errors import ConfigError
from bray_core.protocols import Answer
from bray_core.spaces import Spaces
from bray_server import ServerThread

SPACES = Spaces.parse("race", {"observation": {"shape": [1]}, "action": {"discrete": 3}})


class Race:
    """Two agents in turn; the first to pass 4 wins, the other is told at the end."""

    agents = ("red", "blue")

    def __init__(self) -> None:
        self.closed = False

    def spaces(self, agent: str) -> Spaces:
        return SPACES

    def reset(self, seed: int | None = None) -> dict[str, AgentTick]:
        self.at = dict.fromkeys(self.agents, 0)
        self.turn = 0
        return {"red": AgentTick(np.zeros(1, np.float32))}

    def step(self, actions: Mapping[str, Any]) -> dict[str, AgentTick]:
        ((agent, action),) = actions.items()
        assert agent == self.agents[self.turn % 2], "they act in turn"
        self.at[agent] += int(action)
        self.turn += 1
        if self.at[agent] > 4:
            return {
                name: AgentTick(None, 1.0 if name == agent else -1.0, terminated=True)
                for name in self.agents
            }
        following = self.agents[self.turn % 2]
        return {following: AgentTick(np.full(1, self.at[following], np.float32))}

    def close(self) -> None:
        self.closed = True


class Always:
    """A model that takes one action."""

    version = 0

    def __init__(self, action: int, num_actions: int = 3) -> None:
        self._logits = np.full(num_actions, -100, np.float32)
        self._logits[action] = 100

    async def infer(self, *inputs: Any, batch: bool = False) -> Answer:
        return Answer({"logits": self._logits, "value": np.float32(0)}, 0)


def table(**actions: int) -> tuple[SessionRouter, MatchTable]:
    """Return what answers the agents, each of which takes one action."""
    seats = {}
    for agent, action in actions.items():
        model: Any = Always(action)
        seats[agent] = Seat(name=f"takes-{action}", model=model, config=PolicyConfig())
    matches = MatchTable(
        FixedCast(seats), lambda session, seat: PolicyActor(session, seat.model, seat.config)
    )
    model = Always(0)
    routed = RoutedSeat(spaces=SPACES, make=PolicyActor.factory(model, PolicyConfig()))
    return SessionRouter({"*": routed}, matches), matches


class TestGames:
    @pytest.mark.parametrize("over_tcp", [True, False])
    def test_agents_in_turn_are_sides_of_a_match(self, over_tcp: bool) -> None:
        router, matches = table(red=1, blue=2)
        made: list[Race] = []

        def make() -> Race:
            made.append(Race())
            return made[-1]

        if over_tcp:
            with closing(ServerThread(router)) as server:
                games = play_matches(make, server.addresses[0], games=5, lanes=2)
        else:
            games = play_matches(make, router, games=5, lanes=2)
        assert games == [{"red": -1.0, "blue": 1.0}] * 5
        results = matches.poll()
        assert [result.returns for result in results] == games
        assert results[0].seats == {"red": "takes-1", "blue": "takes-2"}
        assert results[0].lengths == {"red": 3, "blue": 3}
        assert [race.closed for race in made] == [True, True]

    def test_one_who_comes_back_is_refused_in_words(self) -> None:
        class ComingBack(Race):
            def step(self, actions: Mapping[str, Any]) -> dict[str, AgentTick]:
                self.turn += 1
                seen = np.zeros(1, np.float32)
                return {"red": AgentTick(seen), "blue": AgentTick(seen, terminated=self.turn < 3)}

        router, _ = table(red=1, blue=2)
        with pytest.raises(ConfigError, match=r"'0/0/blue': expected that an agent which has end"):
            play_matches(ComingBack, router, games=1, lanes=1)

    def test_what_a_session_says_of_itself(self) -> None:
        said: dict[str, Any] = {}

        class Noting:
            def __init__(self, session: str) -> None:
                self._session = session

            async def start(self, body: bytes) -> bytes:
                said[self._session] = codec.decode(body)
                return b""

            async def tick(self, body: bytes) -> bytes:
                return codec.encode({"action": np.int64(2)})

            async def end(self, body: bytes) -> bytes:
                return b""

        play_matches(Race, Noting, games=2, lane_offset=7)
        assert said["7/1/blue"] == {
            "agent": "blue",
            "match": "7/1",
            "lane": 7,
            "side": 1,
            "sides": 2,
        }
        assert sorted(said) == ["7/0/blue", "7/0/red", "7/1/blue", "7/1/red"]

    def test_nonsense_is_refused(self) -> None:
        for settings, message in (
            ({"lanes": 0}, "lanes: expected 1 or more, got 0"),
            ({"games": 0}, "games: expected 1 or more, got 0"),
            ({"seed": -1}, "seed: expected 0 or more, got -1"),
        ):
            with pytest.raises(ConfigError, match=message):
                play_matches(Race, "tcp://127.0.0.1:1", **settings)  # type: ignore[arg-type]
        with pytest.raises(ConfigError, match="lanes: expected 1 or more, got 0"):
            MultiAgentFleet("{}", ["tcp://127.0.0.1:1"], lanes=0)


class Legal:
    """A PolicyActor-like player that takes the first action that a mask allows, else 0."""

    def __init__(self, session: str) -> None:
        LIVES[session.rpartition("/")[2]] += 1

    async def start(self, body: bytes) -> bytes:
        return b""

    async def tick(self, body: bytes) -> bytes:
        observation = codec.decode(body)["observation"]
        mask = observation.get("action_mask") if isinstance(observation, dict) else None
        chosen = 0 if mask is None else int(np.flatnonzero(mask)[0])
        return codec.encode({"action": np.int64(chosen)})

    async def end(self, body: bytes) -> bytes:
        return b""


LIVES: Counter[str] = Counter()


class TestProcess:
    def test_it_plays_a_game_of_pettingzoo(self) -> None:
        LIVES.clear()
        with closing(ServerThread(Legal)) as server:
            made = MultiAgentSpec(environment="tictactoe_v3").to_json()
            words = ["--make", made, "--address", server.addresses[0], "--games", "3", "--json"]
            done = subprocess.run(
                [sys.executable, "-m", multi_agent_gamecore.__name__, *words, "--lanes", "2"],
                capture_output=True,
                text=True,
                timeout=60,
            )
        assert done.returncode == 0, done.stderr
        # Moves 0 to 6 in turn: the first player holds 0, 2, 4 and 6, and so a diagonal.
        games = json.loads(done.stdout)["returns"]
        assert games == [{"player_1": 1.0, "player_2": -1.0}] * 3
        assert LIVES == {"player_1": 3, "player_2": 3}

    def test_what_cannot_be_played_is_said_in_one_line(
        self, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(gamecore_process, "die_with_parent", lambda parent: None)
        monkeypatch.setattr("signal.signal", lambda number, handler: None)
        address = ["--address", "tcp://127.0.0.1:1"]
        assert multi_agent_gamecore.main(["--env", "tictacto_v3", *address]) == 2
        assert "environment: unknown 'tictacto_v3', did you mean 'tictactoe_v3'" in (
            capsys.readouterr().err
        )
        assert multi_agent_gamecore.main(["--make", "{", *address]) == 2
        assert "environment: expected JSON" in capsys.readouterr().err

    def test_a_fleet_names_its_lanes(self) -> None:
        fleet = MultiAgentFleet("{}", ["tcp://127.0.0.1:1"], num_processes=2, lanes=3, seed=5)
        words = fleet._words(1, "tcp://127.0.0.1:1")
        assert words[words.index("--lane-offset") + 1] == "3"
        assert words[words.index("--parent") + 1] == str(os.getpid())
