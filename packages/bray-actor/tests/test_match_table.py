"""Matches over the wire: who plays which side, and how each ended; and who answers which agent."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from typing import Any

import numpy as np
import pytest

from bray_actor import PolicyActor, PolicyConfig, segment_spec
from bray_actor.multi_agent.match_table import MatchTable
from bray_actor.multi_agent.seat import FixedCast, Seat
from bray_actor.policy.session_router import RoutedSeat, SessionRouter
from bray_actor.policy.session_start import SessionStart
from bray_buffer import Buffer, BufferConfig
from bray_core import codec, metrics
from bray_core.errors import ConfigError, ServiceError
from bray_core.layout import Layout
from bray_core.nested import ArraySpec
from bray_core.protocols import Answer
from bray_core.spaces import Spaces
from bray_server import Client, ServerThread

LAYOUT = Layout(segment_spec(ArraySpec(np.dtype("f4"), (1,)), ArraySpec(np.dtype("i8"), ()), 8))
SPACES = Spaces.parse("game", {"observation": {"shape": [1]}, "action": {"discrete": 2}})
TICK = codec.encode({"observation": np.zeros(1, np.float32), "reward": 1.0})


class Always:
    """A model that takes one action."""

    version = 0

    def __init__(self, action: int) -> None:
        self._logits = np.full(2, -100, np.float32)
        self._logits[action] = 100

    async def infer(self, *inputs: Any, batch: bool = False) -> Answer:
        return Answer({"logits": self._logits, "value": np.float32(0)}, 0)


class Cast:
    """A learner, and an opponent that the driver may change; sides are drawn."""

    def __init__(self) -> None:
        self.buffer: Any = Buffer(LAYOUT, BufferConfig(batch_size=1, capacity=64))
        learner: Any = Always(1)
        self.learner = Seat(name="main", model=learner, config=PolicyConfig(), buffer=self.buffer)
        self.tell("v1")

    def draw(self, generator: random.Random) -> Mapping[str, Seat]:
        sides = [self.learner, self.opponent]
        generator.shuffle(sides)
        return dict(zip(("white", "black"), sides, strict=True))

    def tell(self, news: Any) -> None:
        model: Any = Always(0)
        self.opponent = Seat(name=news, model=model, config=PolicyConfig(role="opponent"))


def play(session: str, seat: Seat) -> PolicyActor:
    return PolicyActor(session, seat.model, seat.config, seat.buffer)


def table_of(cast: Any = None, **settings: Any) -> MatchTable:
    return MatchTable(cast or Cast(), play, **settings)


def connected(server: ServerThread) -> Client:
    return Client(server.addresses[0], timeout_s=10)


@contextmanager
def serving(table: MatchTable | None, **seats: RoutedSeat) -> Iterator[Client]:
    router = SessionRouter(seats or {"*": routed()}, table)
    with closing(ServerThread(router)) as server, connected(server) as client:
        yield client


def routed(action: int = 0, **settings: Any) -> RoutedSeat:
    model: Any = Always(action)
    return RoutedSeat(spaces=SPACES, make=PolicyActor.factory(model, PolicyConfig()), **settings)


def start(client: Client, session: str, **said: Any) -> None:
    client.start(session, codec.encode(said))


def action(client: Client, session: str) -> int:
    return int(codec.decode(client.tick(session, TICK))["action"])


def end(client: Client, session: str, reward: float, **said: Any) -> None:
    client.end(session, codec.encode({"reward": reward, "terminated": True, **said}))


def starts(match: str = "m", **said: Any) -> SessionStart:
    return SessionStart.read({"match": match, **said})


class TestMatches:
    def test_a_learner_is_recorded_and_its_opponent_is_not(self) -> None:
        cast = Cast()
        table = table_of(cast, seed=3)
        seen = set()
        with serving(table) as client:
            for match in range(8):
                for side, agent in enumerate(("white", "black")):
                    start(client, agent, match=match, agent=agent, side=side, sides=2)
                acted = {agent: action(client, agent) for agent in ("white", "black")}
                end(client, "white", 1.0)
                assert table.poll() == []
                end(client, "black", -1.0)
                (result,) = table.poll()
                assert result.returns == {"white": 1.0, "black": -1.0}
                assert result.lengths == {"white": 1, "black": 1}
                assert result.scores == {}
                assert {result.seats[a] for a in acted} == {"main", "v1"}
                assert all((result.seats[a] == "main") == bool(acted[a]) for a in acted)
                seen.add(result.seats["white"])
        assert seen == {"main", "v1"}, "sides are drawn"
        assert cast.buffer.stats()["queued"] == 8, "one segment of the learner a match"
        assert table.num_open == 0

    def test_what_is_drawn_depends_on_seed_and_name_alone(self) -> None:
        def drawn(table: MatchTable, matches: Iterator[int] | range) -> dict[int, str]:
            found = {}
            with serving(table) as client:
                for match in matches:
                    for agent in ("white", "black"):
                        start(client, agent, match=match, agent=agent)
                        end(client, agent, 0.0)
                    found[match] = table.poll()[0].seats["white"]
            return found

        assert drawn(table_of(seed=1), range(12)) == drawn(
            table_of(seed=1), iter(reversed(range(12)))
        )
        assert drawn(table_of(seed=1), range(12)) != drawn(table_of(seed=2), range(12))

    def test_a_simulator_may_tell_the_score(self) -> None:
        table = table_of()
        with serving(table) as client:
            for side, score in enumerate((1, 0.0)):
                start(client, str(side), match="m", side=side)
                end(client, str(side), 5.0, score=score)
        (result,) = table.poll()
        assert result.scores == {"white": 1.0, "black": 0.0}

    @pytest.mark.parametrize("score", [-0.1, 1.5, float("nan"), True, "won", [1]])
    def test_a_score_is_checked(self, score: Any) -> None:
        with serving(table_of()) as client:
            start(client, "x")
            with pytest.raises(ServiceError, match="bad_request: score: expected a number from"):
                end(client, "x", 5.0, score=score)

    def test_news_change_the_matches_to_come(self) -> None:
        table = table_of()
        with serving(table) as client:
            for name in ("v1", "v2"):
                table.tell(name)
                for agent in ("white", "black"):
                    start(client, agent, match=name, agent=agent)
                for agent in ("white", "black"):
                    end(client, agent, 0.0)
                assert name in table.poll()[0].seats.values()

    def test_a_lost_side_voids_its_match(self) -> None:
        table = table_of()
        is_voided()
        router = SessionRouter({"*": routed()}, table)
        with closing(ServerThread(router)) as server, connected(server) as client:
            start(client, "a", match="m", agent="white")
            other = connected(server)
            start(other, "b", match="m", agent="black")
            assert action(client, "a") in (0, 1)
            other.close()
            until = time.monotonic() + 10
            while not is_voided() and time.monotonic() < until:
                time.sleep(0.01)
            assert action(client, "a") in (0, 1), "it may play on"
            end(client, "a", 1.0)
        assert table.poll() == []
        assert table.num_open == 0

    async def test_results_that_nobody_asks_for_are_dropped_counted_and_told_once(
        self, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        monkeypatch.setattr("bray_actor.multi_agent.match_table._MOST_RESULTS", 4)
        table = table_of()
        metrics.drain()
        for number in range(7):
            for agent in ("white", "black"):
                side = table.join(f"{agent}{number}", starts(f"m{number}", agent=agent))
                await side.start(b"")
                told = {"reward": 0.0, "terminated": True, "metrics": {"number": float(number)}}
                await side.end(codec.encode(told))
        found = [result.metrics["white"]["number"] for result in table.poll()]
        assert found == [4, 5, 6]
        counted = {sample.name: sample.total for sample in metrics.drain()}
        assert counted["actor/matches_dropped"] == 4
        assert counted["actor/matches"] == 7
        (line,) = caplog.messages
        assert "nobody asked for the results of 4: the oldest 2 are dropped" in line

    def test_a_side_that_never_comes_voids_its_match(self) -> None:
        now = [0.0]
        table = table_of(side_timeout_s=5.0, clock=lambda: now[0])
        white = table.join("a", starts(agent="white"))
        table.join("b", starts("whole", agent="white"))
        table.join("c", starts("whole", agent="black"))
        now[0] = 6.0
        assert table.poll() == []
        assert table.num_open == 2, "somebody still plays"
        table.lost(white._match, "white")
        assert table.num_open == 1
        table.join("d", starts(agent="white"))  # the name begins anew

    def test_there_is_a_limit_of_open_matches(self) -> None:
        table = table_of(max_matches=2)
        for name in ("a", "b"):
            table.join(name, starts(name, side=0))
        with pytest.raises(ServiceError, match="too_many_sessions: match: 2 matches are open"):
            table.join("c", starts("c", side=0))
        table.join("a2", starts("a", side=1))

    def test_matches_that_nobody_plays_give_way_to_new_ones(self) -> None:
        """A client that ends one side of each match, and no more, keeps nobody from playing."""
        table = table_of(max_matches=2)
        for name in ("a", "b", "c", "d"):
            white = table.join(name, starts(name, side=0))
            table.ended(white._match, "white", white._actor)
        assert table.num_open == 2
        with pytest.raises(ServiceError, match="white' has come already"):
            table.join("d2", starts("d", side=0))
        table.join("a2", starts("a", side=0))

    def test_the_log_of_late_sides_is_bounded_and_not_forged(
        self, caplog: pytest.LogCaptureFixture
    ) -> None:
        now = [0.0]
        table = table_of(side_timeout_s=5.0, clock=lambda: now[0])
        for number in range(200):
            table.join("a", starts(f"\x1b[2J\nERROR {number}", side=0))
        now[0] = 6.0
        table.poll()
        assert 0 < len(caplog.messages) < 40
        assert all(message.isprintable() for message in caplog.messages)

    @pytest.mark.parametrize(
        ("said", "message"),
        [
            ({}, "match m: expected an agent or a side, got neither"),
            ({"agent": "red"}, "agent: expected one of white, black, got 'red'"),
            ({"side": 2}, "side: expected 0 to 1, got 2"),
            ({"side": 0, "sides": 1}, "sides: match m has 2, got 1"),
            ({"side": 0}, "match m: 'white' has come already: start another match"),
        ],
    )
    def test_a_wrong_side_is_refused(self, said: dict[str, Any], message: str) -> None:
        table = table_of()
        table.join("first", starts(agent="white"))
        with pytest.raises(ServiceError, match=message):
            table.join("second", starts(**said))

    def test_other_nonsense_is_refused(self) -> None:
        with pytest.raises(ConfigError, match="max_matches: expected 1 or more, got 0"):
            table_of(max_matches=0)
        with pytest.raises(ConfigError, match="side_timeout_s: expected more than 0, got 0"):
            table_of(side_timeout_s=0)
        with pytest.raises(ServiceError, match=r"sides: expected at most 2 \(white, black\), got"):
            table_of().join("a", starts(sides=3, agent="white"))
        with pytest.raises(ServiceError, match="match: expected the name of a match, got none"):
            table_of().join("a", SessionStart())
        table = table_of()
        table.join("a", starts(sides=1, agent="white"))
        with pytest.raises(ServiceError, match="match m: all 1 sides have come, got 'black'"):
            table.join("b", starts(agent="black"))

    def test_a_cast_may_name_patterns(self) -> None:
        model: Any = Always(1)
        seats = {
            pattern: Seat(name=name, model=model, config=PolicyConfig())
            for pattern, name in (("judge", "judges"), ("hunter_*", "hunters"))
        }
        table = table_of(FixedCast(seats))
        with pytest.raises(ServiceError, match="sides: expected the number of the match's sides"):
            table.join("a", starts(agent="hunter_1"))
        with pytest.raises(ServiceError, match="match m: expected an agent beside the side"):
            table.join("a", starts(side=1, sides=3))
        with pytest.raises(ServiceError, match=r"agent: expected one of judge, hunter_\*, got 'x'"):
            table.join("a", starts(agent="x", sides=3))
        with serving(table) as client:
            for agent in ("hunter_1", "judge", "hunter_2"):
                start(client, agent, match="m", agent=agent, sides=3)
                end(client, agent, 1.0)
        (result,) = table.poll()
        assert result.seats == {"judge": "judges", "hunter_1": "hunters", "hunter_2": "hunters"}
        assert list(result.returns) == list(result.seats)


def is_voided() -> bool:
    """Whether a match was voided since the last call."""
    return "actor/matches_voided" in [sample.name for sample in metrics.drain()]


class TestRouting:
    def test_an_agent_is_answered_by_the_first_pattern_that_fits(self) -> None:
        seats = {"hunter_0": routed(0), "hunter_*": routed(1), "*": routed(0)}
        with serving(None, **seats) as client:
            for agent, wanted in (("hunter_0", 0), ("hunter_9", 1), ("runner", 0), (None, 0)):
                start(client, f"{agent}", **({} if agent is None else {"agent": agent}))
                assert action(client, f"{agent}") == wanted

    def test_one_that_none_fits_is_told_which_there_are(self) -> None:
        with serving(None, **{"hunter_*": routed(), "runner_*": routed()}) as client:
            known = r"agent: expected a name that fits one of hunter_\*, runner_\*; got"
            with pytest.raises(ServiceError, match=f"bad_request: {known} 'Hunter_1'"):
                start(client, "a", agent="Hunter_1")
            with pytest.raises(ServiceError, match=f"{known} none"):
                start(client, "b")

    def test_a_session_may_name_its_policy(self) -> None:
        seats = {"hunter_*": routed(0, name="hunter"), "x": routed(1, name="runner")}
        with serving(None, **seats) as client:
            start(client, "a", agent="hunter_1", policy="runner")
            assert action(client, "a") == 1
            with pytest.raises(ServiceError, match="policy: expected one of hunter, runner; got"):
                start(client, "b", policy="Runner")
        with serving(None) as client:  # the only one has no name: it answers all
            start(client, "a", policy="anything")

    def test_spaces_are_those_of_the_agents_policy(self) -> None:
        other = Spaces.parse("b", {"observation": {"shape": [2]}, "action": {"discrete": 2}})
        seats = {"a": routed(), "b": RoutedSeat(spaces=other, make=routed().make)}
        described = {"observation": {"shape": [1]}, "action": {"discrete": 2}}
        with serving(None, **seats) as client:
            start(client, "a", agent="a", spaces=described)
            with pytest.raises(ServiceError, match="bad_spaces: observation: "):
                start(client, "b", agent="b", spaces=described)

    def test_a_session_without_a_match_is_no_matchs(self) -> None:
        table = table_of()
        with serving(table) as client:
            start(client, "a", agent="white")
            assert action(client, "a") == 0
            assert table.num_open == 0


class TestStart:
    @pytest.mark.parametrize(
        ("said", "message"),
        [
            ({"agent": [1]}, r"agent: expected a name or a number, got \[1\]"),
            ({"policy": True}, "policy: expected a name or a number, got True"),
            ({"match": {}}, "match: expected a name or a number, got {}"),
            ({"game": 1.5}, "game: expected a name or a number, got 1.5"),
            ({"agent": "x" * 201}, "agent: expected 1 to 200 characters, got 201"),
            ({"match": ""}, "match: expected 1 to 200 characters, got 0"),
            ({"side": "left"}, "side: expected a whole number from 0 to 63, got 'left'"),
            ({"side": 2, "sides": 2}, "side: expected a whole number from 0 to 1, got 2"),
            ({"sides": 0}, "sides: expected a whole number from 1 to 64, got 0"),
            ({"sides": 65}, "sides: expected a whole number from 1 to 64, got 65"),
            ({"sides": True}, "sides: expected a whole number from 1 to 64, got True"),
        ],
    )
    def test_what_is_wrong_is_said(self, said: dict[str, Any], message: str) -> None:
        with pytest.raises(ServiceError, match=f"bad_request: {message}"):
            SessionStart.read(said)

    @pytest.mark.parametrize(
        ("said", "message"),
        [
            ({"spaces": np.zeros(10**6, np.int8)}, "body: expected at most 65,536 numbers"),
            ({"lane": np.full(70_000, 1e308)}, "body: expected at most 65,536 numbers in lists"),
            ({"lane": np.full(60_000, 1e308)}, "lane: expected a number or a name, got .1e.308, "),
            ({"spaces": {"observation": {"k" * 1100: {}}}}, "body: .* keys of at most 1024 chara"),
        ],
    )
    async def test_a_body_costs_what_it_may(self, said: dict[str, Any], message: str) -> None:
        with pytest.raises(ServiceError, match=f"bad_request: {message}"):
            await SessionStart.of_body(codec.encode(said))

    def test_what_it_says(self) -> None:
        said = {"agent": "a", "policy": "p", "match": 7.0, "side": np.int64(1), "sides": 2}
        start = SessionStart.read(said)
        assert (start.agent, start.policy, start.match) == ("a", "p", "7")
        assert (start.side, start.sides) == (1, 2)
        assert SessionStart.read({"game": "5", "agent": "x"}).match == "5"
        assert SessionStart.read({}) == SessionStart()
        nothing = dict.fromkeys(("lane", "spaces", "tags", "agent", "policy", "match", "side"))
        assert SessionStart.read(nothing) == SessionStart()
        assert SessionStart.read({"tags": {"phase": None}}) == SessionStart()
