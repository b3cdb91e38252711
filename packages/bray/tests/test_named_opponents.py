"""Scripts, chance, searches, versions and exports as opponents; matches against them."""

from __future__ import annotations

import asyncio
import math
import pickle
import random
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from toy_matches import SIDES, make_model, publish

from bray.games.board_game import BOARD_GAMES, PLAYERS, board_code
from bray.games.evaluate_match import evaluate_match
from bray.games.named_opponents import named_opponent, random_action
from bray.games.scripted_model import ScriptedModel
from bray.games.sides import sides_of
from bray.sources.opponents_config import is_opponent_name
from bray_actor import PolicyConfig
from bray_actor.multi_agent.making import MultiAgentSpec
from bray_actor.multi_agent.seat import Seat
from bray_actor.policy.decoder import decoder_for
from bray_core import nested
from bray_core.action_vector import ActionVector
from bray_core.errors import BrayError, ConfigError, DeadlineError, NotFoundError, SpecError
from bray_core.spaces import Spaces

SCRIPTS = Path(__file__).with_name("medium_script.py")
RPS = Path(__file__).parents[3] / "examples/league/rock_paper_scissors.py"
TOY = Spaces.parse("toy", {"observation": {"shape": [1]}, "action": {"discrete": 3}})
ACTIONS = {
    "discrete": ({"discrete": 4}, 3),
    "several": ({"multi_discrete": [3, 2]}, [2, 1]),
    "flags": ({"multi_binary": 3}, [1, 0, 1]),
    "reals": ({"shape": [2], "low": -1, "high": 1}, [0.5, -0.25]),
    "nested": (
        {"what": {"discrete": 3}, "where": {"shape": [2], "low": [0, None], "high": [4, None]}},
        {"what": 2, "where": [3.5, -7.0]},
    ),
}


def board_spaces(name: str) -> Spaces:
    return BOARD_GAMES[name]().spaces("player_0")


def of_action(action: Any) -> Spaces:
    return Spaces.parse("toy", {"observation": {"shape": [1]}, "action": action})


def ask(model: ScriptedModel, observation: Any, *, batch: bool = False) -> Any:
    return asyncio.run(model.infer(observation, batch=batch)).outputs


@pytest.mark.parametrize("kind", ACTIONS)
def test_every_decoder_takes_what_a_script_returns(kind: str) -> None:
    description, action = ACTIONS[kind]
    spaces = of_action(description)
    model = ScriptedModel("mine", spaces, function=lambda observation, generator: action)
    vector = ActionVector(spaces.action)
    row = np.ones(1, np.float32)
    outputs = ask(model, row)
    decoder = decoder_for(outputs)
    wanted = action if isinstance(action, dict) else {"": action}
    for decision in (decoder.mode(outputs), decoder.sample(outputs, random.Random(0))):
        made: Any = vector.assemble(np.asarray(decision.action))
        taken = made if isinstance(made, dict) else {"": made}
        for name, leaf in wanted.items():
            np.testing.assert_allclose(taken[name], leaf, atol=1e-6)
    batched = ask(model, np.ones((3, 1), np.float32), batch=True)
    for one, three in zip(nested.items(outputs), nested.items(batched), strict=True):
        assert (three[1] == one[1][None]).all()
        assert three[1].dtype == np.float32


def test_a_script_is_called_for_each_row_with_what_the_agent_sees() -> None:
    seen: list[Any] = []

    def copy_cat(observation: Any, generator: np.random.Generator) -> int:
        seen.append(observation)
        return int(observation["observation"][0])

    spaces = board_spaces("tic-tac-toe")
    model = ScriptedModel("copy_cat", spaces, function=copy_cat)
    rows = {
        "observation": np.array([[3.0], [0.0], [5.0]], np.float32),
        "action_mask": np.array([[1] * 9, [0] * 9, [1] * 9], np.int8),  # nobody is in the second
    }
    outputs = ask(model, rows, batch=True)
    assert outputs["logits"].argmax(1).tolist() == [3, 0, 5]
    assert len(seen) == 2
    assert seen[1]["action_mask"].tolist() == [1] * 9


def test_a_row_of_zeros_may_be_nobodys() -> None:
    model = ScriptedModel("m:first", TOY, function=lambda observation, _: 1 / observation[0] > 0)
    with np.errstate(divide="raise"):
        assert ask(model, np.array([[0.0], [2.0]]), batch=True)["logits"].argmax(1).tolist()[0] == 0


@pytest.mark.parametrize("returned", [None, 3, -1, 0.5, [1], "rock", np.nan, {"a": 1}])
def test_what_is_no_action_names_the_function(returned: Any) -> None:
    model = ScriptedModel("my_game:medium", TOY, function=lambda observation, generator: returned)
    with pytest.raises(SpecError, match=r"^my_game:medium: expected an action \(one of 3 values"):
        ask(model, np.ones(1))


def test_reals_that_are_not_finite_name_the_function() -> None:
    spaces = of_action({"shape": [2]})
    model = ScriptedModel("m:f", spaces, function=lambda observation, generator: [1.0, np.inf])
    with pytest.raises(SpecError, match=r"m:f: expected an action \(numbers of 2 .*inf"):
        ask(model, np.ones(1))


def test_an_error_of_a_function_names_it() -> None:
    model = ScriptedModel(f"{SCRIPTS}:fails", TOY)
    with pytest.raises(BrayError, match=r"medium_script\.py:fails: KeyError: 'cards'"):
        ask(model, np.ones(1))


def test_a_script_has_no_weights_and_travels_by_its_name() -> None:
    model = ScriptedModel(f"{SCRIPTS}:always_paper", TOY)
    ask(model, np.ones(1))
    data = pickle.dumps(model)
    assert len(data) < 2000
    assert b"function always_paper" not in data
    assert ask(pickle.loads(data), np.ones(1))["logits"].argmax() == 1
    assert model.checkpoint() is None
    assert model.version == 0 == asyncio.run(model.wait_version(0))
    with pytest.raises(DeadlineError, match="stays at 0"):
        asyncio.run(model.wait_version(1))
    with pytest.raises(ConfigError, match="publish: expected a model that learns, got the script"):
        model.publish({})


def test_chance_draws_evenly_from_what_is_allowed() -> None:
    generator = np.random.default_rng(0)
    space = TOY.action
    masked = {"action_mask": np.array([1, 0, 1])}
    drawn = Counter(int(random_action(space, masked, generator)) for _ in range(1000))
    assert drawn[0] == pytest.approx(500, abs=5 * math.sqrt(250))
    assert drawn[1] == 0
    assert {int(random_action(space, np.ones(1), generator)) for _ in range(100)} == {0, 1, 2}
    several = of_action({"multi_discrete": [2, 2]}).action
    mask = {"action_mask": np.array([0, 1, 1, 0])}
    assert random_action(several, mask, generator).tolist() == [1, 0]
    bounds = {"shape": [2], "low": [2, None], "high": [3, None]}
    reals = np.array([random_action(of_action(bounds).action, 0, generator) for _ in range(200)])
    assert ((reals[:, 0] >= 2) & (reals[:, 0] <= 3)).all()
    assert (reals[:, 1] < 0).any()
    with pytest.raises(ConfigError, match="action_mask: expected 3 flags, got 2"):
        random_action(space, {"action_mask": np.ones(2)}, generator)


def test_names_that_are_no_opponent_are_refused_in_words(tmp_path: Path) -> None:
    forms = "expected random, search, a script .module:function, file.py:function"
    for name in ("medium", "", ":x", "a:b c"):
        with pytest.raises(ConfigError, match=f"opponent: {forms}.*, got '{name}'"):
            named_opponent(name, TOY)
        with pytest.raises(ConfigError, match=r"expected a version \(v12\), random, search, a scr"):
            named_opponent(name, TOY, versions=lambda _: pytest.fail("no version"))
    with pytest.raises(ConfigError, match=r"v12: frozen .* not exported: expected random, sea"):
        named_opponent("v12", TOY)
    with pytest.raises(ConfigError, match=r"nowhere:f: expected module:function .* No module"):
        named_opponent("nowhere:f", TOY)
    with pytest.raises(ConfigError, match=r"medium_script.py:other: expected .* no attribute"):
        named_opponent(f"{SCRIPTS}:other", TOY)
    with pytest.raises(ConfigError, match=r"NOT_A_FUNCTION: expected a function .*, got int"):
        named_opponent(f"{SCRIPTS}:NOT_A_FUNCTION", TOY)
    with pytest.raises(ConfigError, match=r"search: expected a game whose rules bray knows .*toy"):
        named_opponent("search", TOY)
    with pytest.raises(NotFoundError, match="neither an export"):
        named_opponent(str(tmp_path), TOY)


def test_templates_know_opponents_by_their_names(tmp_path: Path) -> None:
    for name in ("random", "search", "v12", "main:v3", str(tmp_path)):
        assert is_opponent_name(name)
    for name in ("", "medium", "vv", "v", "a:b:v3", "my_game:medium"):
        assert not is_opponent_name(name)


def test_a_version_is_asked_for_by_its_name() -> None:
    seat = Seat(name="main:v12", model=ScriptedModel("x", TOY), config=PolicyConfig())
    asked: list[str] = []

    def versions(name: str) -> Seat:
        asked.append(name)
        return seat

    for name in ("v12", "main:v12"):
        assert named_opponent(name, TOY, versions=versions) is seat
    assert asked == ["v12", "main:v12"]


@pytest.mark.long
def test_an_export_and_the_trial_that_holds_it_are_opponents(tmp_path: Path) -> None:
    with make_model(tmp_path) as model:
        publish(model)
        export = tmp_path / "models" / "policy" / "onnx" / "1"
        model.export(export, actor={"name": "policy", "config": {"deterministic": True}})
        row = np.ones(1, np.float32)
        wanted = model(row)
    for path in (export, tmp_path):
        seat = named_opponent(str(path), TOY)
        assert seat.config.deterministic
        assert seat.buffer is None
        answer: Any = asyncio.run(seat.model.forward(row))
        np.testing.assert_allclose(answer, wanted, rtol=1e-5)


def rps(number: int) -> list[Any]:
    return [MultiAgentSpec(environment=f"{RPS}:RockPaperScissors").make() for _ in range(number)]


def seat_of(action: int, name: str = "policy") -> Seat:
    model = ScriptedModel(name, TOY, function=lambda observation, generator: action)
    return Seat(name=name, model=model, config=PolicyConfig(deterministic=True))


@pytest.mark.parametrize(("action", "score"), [(0, 0.0), (1, 0.5), (2, 1.0)])
def test_matches_of_rock_paper_scissors_have_the_scores_of_its_matrix(
    action: int, score: float
) -> None:
    paper = named_opponent(f"{SCRIPTS}:always_paper", TOY)
    scores = evaluate_match(seat_of(action), paper, rps(3), 7, 0, sides=SIDES)
    assert scores == [score] * 7


def test_chance_wins_as_often_as_it_loses() -> None:
    scores = evaluate_match(seat_of(0), named_opponent("random", TOY), rps(4), 600, 0, sides=SIDES)
    counts = Counter(scores)
    for score in (0.0, 0.5, 1.0):  # five deviations of 600 games
        assert counts[score] == pytest.approx(200, abs=5 * math.sqrt(600 * 2 / 9))


def test_a_match_that_cannot_be_played_is_refused_in_words() -> None:
    with pytest.raises(ConfigError, match="opponent: expected another name than 'policy'"):
        evaluate_match(seat_of(0), seat_of(1), rps(1), 1, 0, sides=SIDES)
    with pytest.raises(ConfigError, match=r"opponent: expected one for each agent, got none"):
        evaluate_match(seat_of(0), {}, rps(1), 1, 0, sides=SIDES)
    with pytest.raises(ConfigError, match="num_games"):
        evaluate_match(seat_of(0), seat_of(1, "x"), rps(1), 0, 0, sides=SIDES)


def boards(name: str, number: int) -> list[Any]:
    return [MultiAgentSpec(environment=board_code(f"bray:{name}")).make() for _ in range(number)]


def board_match(name: str, one: str, other: str, num_games: int) -> list[float]:
    environments = boards(name, 4)
    spaces = board_spaces(name)
    seats = named_opponent(one, spaces, seed=1), named_opponent(other, spaces, seed=2)
    sides = sides_of(environments[0].agents)
    return evaluate_match(*seats, environments, num_games, 0, sides=sides)


def test_the_perfect_player_of_tic_tac_toe_never_loses() -> None:
    assert min(board_match("tic-tac-toe", "search", "random", 40)) >= 0.5
    assert max(board_match("tic-tac-toe", f"{SCRIPTS}:first_legal", "search", 20)) <= 0.5


def test_the_search_beats_chance_in_connect_four() -> None:
    assert board_match("connect-four", "search", "random", 4) == [1.0] * 4


def test_first_players_have_the_advantage_and_each_side_is_played_as_often() -> None:
    """Two who take the first legal cell: whoever begins wins."""
    script = f"{SCRIPTS}:first_legal"
    one = named_opponent(script, board_spaces("tic-tac-toe"))
    other = Seat(name="other", model=one.model, config=one.config)
    environments = boards("tic-tac-toe", 3)
    scores = evaluate_match(one, other, environments, 10, 0, sides=sides_of(environments[0].agents))
    assert sum(scores) == 5.0


def test_boards_are_named_and_mistakes_told() -> None:
    for name in BOARD_GAMES:
        assert boards(name, 1)[0].spaces("player_0").difference(board_spaces(name)) is None
    assert board_code("connect_four_v3") == "connect_four_v3"
    with pytest.raises(ConfigError, match=r"environment: expected one of .*did you mean 'bray:tic"):
        board_code("bray:tictactoe")


@pytest.mark.parametrize("name", BOARD_GAMES)
def test_board_games_begin_after_random_moves(name: str) -> None:
    game = BOARD_GAMES[name](opening_moves=3)
    stones, movers = Counter[int](), Counter[str]()
    for seed in range(200):
        ((mover, tick),) = game.reset(seed).items()
        board = tick.observation["observation"].sum()  # type: ignore[call-overload, index]
        stones[int(board)] += 1
        movers[mover] += 1
        assert PLAYERS[int(board) % 2] == mover
        ((again, same),) = game.reset(seed).items()
        assert again == mover
        assert np.array_equal(
            same.observation["observation"],  # type: ignore[call-overload, index]
            tick.observation["observation"],  # type: ignore[call-overload, index]
        )
    assert set(stones) == {0, 1, 2, 3}
    assert min(stones.values()) > 20
    with pytest.raises(ConfigError, match="opening_moves: expected 0 or more, got -1"):
        BOARD_GAMES[name](opening_moves=-1)
