"""Matches whose sides see and do different things: a policy each, and whom they meet."""

from __future__ import annotations

import json
import random
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from chase_game import CAT, MOUSE
from composed_runs import train
from test_composition_runs import run_of
from toy_matches import learner_seat, make_model, publish

from bray.games.match_cast import MatchCast
from bray.games.matchmaker import Matchmaker
from bray.games.pairings import Opponent, Pairings
from bray.games.side_groups import SideGroup
from bray.games.sides import sides_in
from bray.sources.opponents_config import OpponentsConfig
from bray_actor.multi_agent.seat import GameResult
from bray_core.cli import main
from bray_core.errors import ConfigError

GAME = f"{Path(__file__).with_name('chase_game.py')}"
SIDES = {"cat": ("cat",), "mouse": ("mouse_0", "mouse_1")}
GROUPS = (SideGroup(("cat",), ("cat",)), SideGroup(("mouse",), ("mouse",)))
PPO = "&ppo {algorithm: ppo, steps_per_replay: 64, epochs: 1, minibatch_size: 32}"
CHASE = f"""
models: {{cat: {{hidden: [8]}}, mouse: {{hidden: [8]}}}}
trainers:
  cat: {PPO}
  mouse: {{algorithm: dqn, batch_size: 16, steps_per_collect: 8, replays_per_collect: 2}}
buffers: {{mouse: {{warmup_frames: 40}}}}
sources:
  game:
    kind: matches
    environment: "{GAME}:Chase"
    num_envs: 2
    agents: {{cat: cat, "mouse_*": mouse}}
    opponents: {{freeze_every: 100}}
goal: {{agent: cat, max_frames: 600, evaluation_episodes: 4}}
"""
RIVALS = CHASE.replace("Chase", "Rivals").replace("cat: cat", '"cat_*": cat')


def cast() -> MatchCast:
    return MatchCast(SIDES, {n: learner_seat(None, n) for n in ("cat", "mouse")}, groups=GROUPS)


def drawn(one: MatchCast, number: int = 4000) -> Counter[tuple[str, str]]:
    generator = random.Random(0)
    found: Counter[tuple[str, str]] = Counter()
    for _ in range(number):
        seats = one.draw(generator)
        assert seats["mouse_0"] is seats["mouse_1"]
        found[seats["cat"].name, seats["mouse_0"].name] += 1
    return found


def matchmaker(folder: Path, rule: Any = "pfsp", **kwargs: Any) -> Matchmaker:
    models = {name: make_model(folder, name) for name in ("cat", "mouse")}
    config = OpponentsConfig(rule=rule, freeze_every=100, **kwargs)
    path = folder / "league.json"
    return Matchmaker(config, models, path, sides=SIDES, groups=GROUPS, seed=3)


def freeze(maker: Matchmaker, number: int) -> None:
    for _ in range(number):
        for learner in ("cat", "mouse"):
            publish(maker._versions._models[learner])
            assert maker.progress({learner: maker.frames[learner] + 100})


def played(cat: str, mouse: str, won: float) -> GameResult:
    seats = {"cat": cat, "mouse_0": mouse, "mouse_1": mouse}
    returns = {"cat": won, "mouse_0": -won, "mouse_1": -won}
    return GameResult(seats, returns, dict.fromkeys(seats, 1))


def who_met(trial: Path) -> set[tuple[str, str]]:
    """Return the pairs of players that have results in a trial's league."""
    payoff = json.loads((trial / "league.json").read_text())["payoff"]
    return {(payoff["players"][i], payoff["players"][j]) for i, j, *_ in payoff["results"]}


# Who plays.


def test_nobody_plays_a_side_of_another_kind() -> None:
    one = cast()
    assert set(drawn(one)) == {("cat", "mouse")}
    of_cat = Opponent("mouse", 0.5), Opponent("mouse:v3", 0.5, object())  # type: ignore[arg-type]
    of_mouse = Opponent("cat", 0.25), Opponent("cat:v1", 0.75, object())  # type: ignore[arg-type]
    one.tell(Pairings({"cat": of_cat, "mouse": of_mouse}))
    found = drawn(one)
    shares = {("cat", "mouse"): 0.375, ("cat", "mouse:v3"): 0.25, ("cat:v1", "mouse"): 0.375}
    assert set(found) == set(shares)
    for pair, share in shares.items():
        assert found[pair] / 4000 == pytest.approx(share, abs=0.04)  # five deviations


def test_both_learn_from_a_game_that_both_play_as_they_are_now() -> None:
    one = cast()
    seats = one.draw(random.Random(0))
    assert all(seat.buffer is not None for seat in seats.values())
    opponents = Opponent("mouse:v3", 1.0, object()), Opponent("cat:v1", 1.0, object())  # type: ignore[arg-type]
    one.tell(Pairings({"cat": opponents[:1], "mouse": opponents[1:]}))
    for number in range(20):
        seats = one.draw(random.Random(number))
        learning = {seat.name for seat in seats.values() if seat.buffer is not None}
        assert len(learning) == 1


def test_news_without_anybody_for_a_side_are_refused() -> None:
    news = Pairings({"cat": (Opponent("cat", 1.0),), "mouse": (Opponent("cat", 1.0),)})
    with pytest.raises(ConfigError, match=r"opponents of cat on side 'mouse', got \['cat'\]"):
        cast().tell(news)


def test_a_learner_meets_the_latest_and_the_versions_of_the_other_side(tmp_path: Path) -> None:
    maker = matchmaker(tmp_path, "past", latest_share=0.4)
    assert maker.pairings().opponents == {
        "cat": (Opponent("mouse", 1.0),),
        "mouse": (Opponent("cat", 1.0),),
    }
    freeze(maker, 2)
    total: Counter[str] = Counter()
    for _ in range(500):
        opponents = maker.pairings().opponents["cat"]
        assert sum(one.weight for one in opponents) == pytest.approx(1)
        for one in opponents:
            total[one.name] += one.weight  # type: ignore[assignment]
    shares = {name: weight / 500 for name, weight in total.items()}
    assert shares == pytest.approx({"mouse": 0.4, "mouse:v1": 0.3, "mouse:v2": 0.3}, abs=0.05)


def test_versions_that_are_hard_to_beat_are_met_more_often(tmp_path: Path) -> None:
    maker = matchmaker(tmp_path, "pfsp", latest_share=0.0)
    freeze(maker, 2)
    maker.record([played("cat", "mouse:v1", 1.0)] * 60 + [played("cat", "mouse:v2", -1.0)] * 60)
    total: Counter[str] = Counter()
    for _ in range(100):
        for one in maker.pairings().opponents["cat"]:
            total[one.name] += one.weight  # type: ignore[assignment]
    assert total["mouse:v2"] > 80
    assert maker.elo()["mouse:v2"].rating > maker.elo()["mouse:v1"].rating
    maker.record([played("cat", "mouse", 1.0)])
    assert maker.payoff.num_games[0, 1] == 1


def test_games_over_the_wire_count_by_the_patterns_of_their_sides(tmp_path: Path) -> None:
    sides = {"red": ("red_*",), "blue": ("blue_*",)}
    assert sides_in(["blue_4", "red_0", "red_1"], sides) == {
        "red": ("red_0", "red_1"),
        "blue": ("blue_4",),
    }
    assert sides_in(["red_0"], sides) is None
    assert sides_in(["red_0", "blue_0", "green_0"], sides) is None


# Runs.


def test_unlike_sides_learn_from_each_other_and_their_past(tmp_path: Path) -> None:
    first = run_of(tmp_path, CHASE, trial="first")
    again = run_of(tmp_path, CHASE, trial="again", exports=False)
    assert first["weights"] == again["weights"]
    assert all(version > 1 for version, _ in first["weights"].values())
    state = json.loads((first["path"] / "league.json").read_text())
    assert {name.partition(":")[0] for name in state["versions"]} == {"cat", "mouse"}
    met = who_met(first["path"])
    assert ("cat", "mouse") in met
    assert all(len({name.partition(":")[0] for name in pair}) == 2 for pair in met)
    assert any(":" in name for pair in met for name in pair)


def test_alike_sides_of_an_unlike_match_are_played_by_both(tmp_path: Path) -> None:
    text = RIVALS.replace(
        "    opponents", "    sides: {a: cat_0, b: cat_1, c: mouse_0, d: mouse_1}\n    opponents"
    )
    found = run_of(tmp_path, text, exports=False)
    met = who_met(found["path"])
    assert any(one == "cat" and other.startswith("cat:") for one, other in met)
    assert ("cat", "mouse") in met


@pytest.mark.long
def test_each_may_be_held_to_its_side_of_a_match_of_equals(tmp_path: Path) -> None:
    text = CHASE.replace(f"{GAME}:Chase", "bray:tic-tac-toe").replace(
        'agents: {cat: cat, "mouse_*": mouse}',
        "agents: {player_0: cat, player_1: mouse}\n    changes_sides: false",
    )
    found = run_of(tmp_path, text, exports=False)
    met = who_met(found["path"])
    assert all(len({name.partition(":")[0] for name in pair}) == 2 for pair in met)


@pytest.mark.parametrize(
    "against",
    [
        "v1",
        *(pytest.param(n, marks=pytest.mark.long) for n in ("mouse", "random", "mouse:v1", None)),
    ],
)
def test_a_rate_of_games_won_is_measured_against_who_plays_the_other_side(
    against: str | None, tmp_path: Path
) -> None:
    run_of(tmp_path, CHASE, trial="it", exports=False)
    state = json.loads((tmp_path / "it" / "league.json").read_text())
    version = next(name for name in state["versions"] if name.startswith("mouse:"))
    wanted = {"mouse:v1": version, "v1": version.partition(":")[2]}.get(str(against), against)
    told = "null" if wanted is None else wanted
    overrides = ["goal.win_rate=0.01", f"goal.against={told}", "goal.max_frames=700"]
    outcome = run_of(tmp_path, CHASE, *overrides, trial="it", exports=False)["outcome"]
    assert set(outcome.episode_returns) <= {0.0, 0.5, 1.0}


def test_a_return_may_be_the_goal_of_a_match(tmp_path: Path) -> None:
    overrides = ["goal.episode_return=-4", "goal.max_frames=200"]
    outcome = run_of(tmp_path, CHASE, *overrides, exports=False)["outcome"]
    assert outcome.reached
    assert all(-4 <= one <= 4 for one in outcome.episode_returns)


REFUSED = {
    "nobody is named": (
        'agents: {cat: cat, "mouse_*": mouse}',
        "",
        r"\.agents: expected who plays cat, as sides that differ have a policy each, got nothing: "
        r'write `agents: {"cat": cat, "mouse_\*": mouse}`',
    ),
    "one for agents that differ": (
        '"mouse_*": mouse',
        "mouse_0: mouse, mouse_1: cat",
        r"\.agents: expected a policy of its own for each kind of side, got 'cat' for cat and "
        r'mouse_1, which differ: .*: write `agents: {"cat": cat, "mouse_\*": mouse}`',
    ),
    "several policies of a side": (
        "    opponents",
        '    sides: {a: "mouse_*", b: cat}\n    opponents',
        None,
    ),
    "a league": (
        "freeze_every: 100",
        "rule: league, roles: {cat: main, mouse: main}",
        r"game\.opponents\.rule: expected pfsp, past or latest where each side has a policy of its",
    ),
    "a champion": (
        "freeze_every: 100",
        "rule: champion",
        r"game\.opponents\.rule: expected pfsp, past or latest .* got champion: a champion is who",
    ),
    "an opponent of the learner's own side": (
        "agent: cat,",
        "agent: cat, win_rate: 0.5, against: cat:v3,",
        r"goal\.against: expected a version that the trial has, none yet, got 'cat:v3'",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_fits_no_unlike_sides_is_refused_in_words(case: str, tmp_path: Path) -> None:
    was, now, words = REFUSED[case]
    assert was in CHASE
    text = CHASE.replace(was, now, 1)
    if words is None:
        text, words = (
            RIVALS.replace("    opponents", '    sides: {a: "*_0", b: "*_1"}\n    opponents'),
            r"game\.sides\.a: expected agents of one policy, got cat_0 by cat, mouse_0 by mouse",
        )
    with pytest.raises(ConfigError, match=words):
        run_of(tmp_path, text)


@pytest.mark.parametrize("kind", ["matches", "agents"])
def test_one_policy_of_unlike_sides_is_told_a_template_that_works(
    kind: str, tmp_path: Path
) -> None:
    short = f"algorithm: ppo\nsource: {{kind: {kind}, environment: '{GAME}:Chase', num_envs: 2}}\n"
    with pytest.raises(ConfigError) as caught:
        run_of(tmp_path, short + "goal: {max_frames: 64}")
    told = str(caught.value)
    trainers, agents, goal = told.split("`")[1::2]
    assert trainers == "trainers: {cat: {algorithm: ppo}, mouse: {algorithm: ppo}}"
    written = short.replace("algorithm: ppo", trainers).replace(
        ", num_envs", f", {agents}, num_envs"
    )
    (tmp_path / "it.yaml").write_text(f"{written}{goal[:-1]}, max_frames: 64}}\n")
    assert train(tmp_path / "it.yaml", tmp_path / "it", exports=False).frames >= 64


@pytest.mark.long
def test_the_trial_is_watched_and_each_side_by_who_plays_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    game = tmp_path / "drawn.py"
    game.write_text(
        f"import sys\nsys.path.insert(0, '{Path(GAME).parent}')\nfrom chase_game import Chase\n"
        "class Drawn(Chase):\n    def render(self):\n        return f'tick {self.at}'\n"
    )
    text = CHASE.replace(f"{GAME}:Chase", f"{game}:Drawn")
    trial = run_of(tmp_path, text)["path"]
    capsys.readouterr()
    assert main(["watch", str(trial)]) == 0
    said = capsys.readouterr().out
    assert "cat (cat)" in said
    assert "mouse_1 (mouse)" in said
    assert main(["watch", str(trial), "--against", "random"]) == 0
    assert "mouse_1 (random)" in capsys.readouterr().out
    assert main(["watch", str(trial), "--against", "cat"]) != 0
    assert "against: expected who may play mouse_0, such as mouse or random" in (
        capsys.readouterr().err
    )
    assert main(["watch", str(trial), "--against", str(trial)]) == 0


# Over the wire, and on Ray.


WIRE = f"""
models:
  cat: {{hidden: [8], spaces: {CAT}}}
  mouse: {{hidden: [8], spaces: {MOUSE}}}
trainers:
  cat: {PPO}
  mouse: *ppo
sources:
  game:
    kind: matches
    command: >-
      {sys.executable} -m bray_actor.gamecores.multi_agent_gamecore --env {GAME}:Chase
      --address {{address}} --lanes {{lanes}} --seed {{seed}} --lane-offset {{first_lane}}
    lanes: 2
    agents: {{cat: cat, "mouse_*": mouse}}
    opponents: {{freeze_every: 100}}
goal: {{agent: cat, max_frames: 800}}
"""
ON_RAY = pytest.param("ray", marks=[pytest.mark.ray, pytest.mark.long, pytest.mark.timeout(280)])


@pytest.mark.parametrize("runtime", [pytest.param("local", marks=pytest.mark.long), ON_RAY])
@pytest.mark.parametrize("text", [WIRE, CHASE], ids=["wire", "in the workers"])
def test_unlike_sides_learn_over_the_wire_and_on_ray(
    text: str, runtime: Any, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    if runtime == "ray":
        request.getfixturevalue("ray_cluster")
    path = run_of(tmp_path, text, exports=False, runtime=runtime)["path"]
    state = json.loads((path / "league.json").read_text())
    assert {name.partition(":")[0] for name in state["versions"]} == {"cat", "mouse"}
    met = who_met(path)
    assert ("cat", "mouse") in met
    assert all(len({name.partition(":")[0] for name in pair}) == 2 for pair in met)
