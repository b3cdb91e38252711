"""Who plays which side of a match, and who has won it."""

from __future__ import annotations

import math
import pickle
import random
from collections import Counter
from typing import Any

import pytest
from toy_matches import SIDES, ToyBuffer, learner_seat, result

from bray.games.match_cast import MatchCast
from bray.games.match_scores import game_score, pair_scores
from bray.games.pairings import Opponent, Pairings
from bray.games.scripted_model import ScriptedModel
from bray.games.sides import sides_of
from bray_actor import PolicyConfig
from bray_actor.multi_agent.seat import GameResult, Seat
from bray_core.errors import ConfigError
from bray_core.spaces import Spaces

SPACES = Spaces.parse("toy", {"observation": {"shape": [1]}, "action": {"discrete": 3}})
NUM_DRAWS = 4000
TOLERANCE = 5 * math.sqrt(0.25 / NUM_DRAWS)
"""Five standard deviations of a share: 0.04."""


def model(name: str) -> Any:
    return ScriptedModel(name, SPACES)


def cast_of(*names: str, **kwargs: Any) -> MatchCast:
    return MatchCast(SIDES, {n: learner_seat(model(n), n) for n in names}, **kwargs)


def shares(cast: MatchCast) -> dict[tuple[str, str], float]:
    generator = random.Random(0)
    drawn = Counter(
        (seats["left"].name, seats["right"].name)
        for seats in (cast.draw(generator) for _ in range(NUM_DRAWS))
    )
    return {pair: number / NUM_DRAWS for pair, number in drawn.items()}


def near(wanted: dict[tuple[str, str], float]) -> Any:
    return pytest.approx(wanted, abs=TOLERANCE)


def test_before_any_pairing_every_learner_meets_itself_and_both_sides_are_recorded() -> None:
    cast = cast_of("main", "rival")
    assert shares(cast) == near({("main", "main"): 0.5, ("rival", "rival"): 0.5})
    seats = cast.draw(random.Random(0))
    assert seats["left"] is seats["right"]
    assert isinstance(seats["left"].buffer, ToyBuffer)


def test_learners_have_their_shares_and_opponents_their_weights_on_either_side() -> None:
    cast = cast_of("main", "rival", shares={"main": 3, "rival": 1})
    met = (Opponent("main", 0.5), Opponent("main:v3", 1.5, model("v3")))
    cast.tell(Pairings({"main": met, "rival": (Opponent("main:latest", 1.0),)}))
    assert shares(cast) == near(
        {
            ("main", "main"): 0.75 * 0.25,
            ("main", "main:v3"): 0.75 * 0.75 / 2,
            ("main:v3", "main"): 0.75 * 0.75 / 2,
            ("rival", "main:latest"): 0.125,
            ("main:latest", "rival"): 0.125,
        }
    )


def test_opponents_record_nothing_and_keep_their_models_between_news() -> None:
    cast = cast_of("main", "rival")
    opponents = Opponent("main:v3", 1.0, model("v3")), Opponent("rival:latest", 1.0)
    news = Pairings({"main": opponents, "rival": (Opponent("rival", 1.0),)})
    seen: dict[str, Seat] = {}
    for _ in range(2):
        cast.tell(pickle.loads(pickle.dumps(news)))  # as it comes on Ray: other objects
        for index in range(200):
            for seat in cast.draw(random.Random(index)).values():
                assert seen.setdefault(seat.name, seat) is seat
    assert set(seen) == {"main", "rival", "main:v3", "rival:latest"}
    assert seen["main:v3"].buffer is None
    assert seen["rival:latest"].buffer is None
    assert seen["rival:latest"].model is seen["rival"].model
    assert seen["main:v3"].config == PolicyConfig(phase="opponent")


def test_agents_with_brackets_in_their_names_are_named_as_they_are() -> None:
    """`car[0]` is the name of an agent first, and a pattern after that."""
    found = sides_of(["car[0]", "car[1]"], {"one": "car[0]", "other": "car[1]"})
    assert found == {"one": ("car[0]",), "other": ("car[1]",)}


def test_all_agents_of_a_side_have_one_seat() -> None:
    agents = ["red_0", "red_1", "blue_0", "blue_1"]
    sides = sides_of(agents, {"red": "red_*", "blue": "blue_*"})
    cast = MatchCast(sides, {"main": learner_seat(model("main"))})
    cast.tell(Pairings({"main": (Opponent("main:v1", 1.0, model("v1")),)}))
    seats = cast.draw(random.Random(1))
    assert list(seats) == agents
    assert seats["red_0"] is seats["red_1"]
    assert seats["blue_0"] is seats["blue_1"]
    assert {seat.name for seat in seats.values()} == {"main", "main:v1"}


def test_casts_and_news_are_small_in_pickle() -> None:
    cast = cast_of("main", "rival")
    met = tuple(Opponent(f"main:v{i}", 1.0, model(f"v{i}")) for i in range(8))
    news = Pairings({"main": met, "rival": met})
    assert len(pickle.dumps(news)) < 5_000
    cast.tell(news)
    again = pickle.loads(pickle.dumps(cast))
    assert len(pickle.dumps(cast)) < 10_000
    names = [{a: s.name for a, s in c.draw(random.Random(5)).items()} for c in (cast, again)]
    assert names[0] == names[1]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: MatchCast(SIDES, {}), "learners: expected one or more, got none"),
        (
            lambda: MatchCast(SIDES, {"main": learner_seat(None, "other")}),
            "learners.main: expected a seat of that name, got 'other'",
        ),
        (
            lambda: MatchCast(
                SIDES, {"main": Seat(name="main", model=model("m"), config=PolicyConfig())}
            ),
            "learners.main: expected a seat with a buffer, got none",
        ),
        (lambda: cast_of("main", shares={"rival": 1}), r"shares: expected those of \['main'\]"),
        (lambda: cast_of("main", shares={"main": 0}), "shares: expected 0 or more, one above 0"),
        (lambda: cast_of("main", shares={"main": math.nan}), "shares: expected 0 or more"),
        (lambda: cast_of("main").tell({}), "news: expected Pairings, got dict"),
        (
            lambda: cast_of("main").tell(Pairings({})),
            r"news: expected opponents of each learner, got none of \['main'\]",
        ),
        (
            lambda: cast_of("main").tell(Pairings({"main": (Opponent("other:v1", 1.0),)})),
            r"news: expected versions of \['main'\], got 'other:v1'",
        ),
        (
            lambda: cast_of("main").tell(Pairings({"main": (Opponent("main:v1", 1.0),)})),
            "news: expected a model of main:v1, got None",
        ),
    ],
)
def test_what_fits_no_match_is_refused_in_words(make: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        make()


def test_each_agent_is_a_side_where_nobody_says_otherwise() -> None:
    assert sides_of(["a", "b"]) == {"a": ("a",), "b": ("b",)} == sides_of(["a", "b"], 2)


@pytest.mark.parametrize(
    ("agents", "sides", "message"),
    [
        (["a", "b", "c"], 2, "sides: expected 2, got an environment of 3 agents .a, b, c.: say"),
        (["a"], None, "sides: expected two sides or more, got .'a'."),
        (["r0", "b0"], {"red": "r*"}, "sides: expected one side for agent 'b0', got none of"),
        (["r0"], {"one": "r*", "two": "*"}, "expected one side for agent 'r0', got .'one', 'two'."),
        (
            ["r0"],
            {"red": "r*", "blue": "b*"},
            "sides.blue: expected a pattern of agents' names, got 'b.', which fits none of r0",
        ),
    ],
)
def test_agents_that_fit_no_side_are_named(agents: Any, sides: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        sides_of(agents, sides)


def test_the_greater_return_wins_and_equal_ones_are_a_draw() -> None:
    for won, score in ((1.0, 1.0), (0.0, 0.5), (1e-14, 0.5), (-2.0, 0.0)):
        assert pair_scores(result("main", "main:v1", won), SIDES) == [("main", "main:v1", score)]


def test_sides_are_compared_by_the_mean_of_their_agents_and_in_pairs() -> None:
    sides = {"one": ("a", "b"), "two": ("c",), "three": ("d",)}
    seats = {"a": "x", "b": "x", "c": "y", "d": "z"}
    returns = {"a": 1.0, "b": 2.0, "c": 1.5}  # d never took part
    scores = pair_scores(GameResult(seats, returns, {}), sides)
    assert scores == [("x", "y", 0.5), ("x", "z", 1.0), ("y", "z", 1.0)]


def test_the_scores_of_a_simulator_decide_a_match_whatever_the_returns_are() -> None:
    sides = {"red": ("a", "b"), "blue": ("c",)}
    seats = {"a": "x", "b": "x", "c": "y"}
    returns = {"a": 9.0, "b": 9.0, "c": 1.0}  # rewards for kills, of the side that lost
    lost = GameResult(seats, returns, {}, {"a": 0.0, "c": 1.0})
    assert pair_scores(lost, sides) == [("x", "y", 0.0)]
    assert game_score(lost, "y", sides) == 1.0
    drawn = GameResult(seats, returns, {}, {"a": 0.0, "b": 1.0, "c": 0.5})
    assert pair_scores(drawn, sides) == [("x", "y", 0.5)]
    untold = GameResult(seats, returns, {}, {"c": 1.0})  # of the other side nothing is known
    assert pair_scores(untold, sides) == [("x", "y", 1.0)]
