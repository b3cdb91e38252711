"""Versions frozen, results counted, opponents drawn; found again after a restart; in the viewer."""

from __future__ import annotations

import json
import math
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from toy_matches import SIDES, make_model, publish, result

from bray.best import BestVersion
from bray.games.matchmaker import Matchmaker
from bray.games.pairings import Opponent
from bray.sources.opponents_config import OpponentsConfig
from bray.viewer import league_results
from bray_core.errors import ConfigError, FormatError, NotFoundError

ROLES = {"main": "main", "hunter": "main_exploiter", "rival": "league_exploiter"}
LEAGUE = OpponentsConfig(rule="league", roles=ROLES, freeze_every=100, latest_share=0.35)


def config(rule: Any = "pfsp", **kwargs: Any) -> OpponentsConfig:
    return OpponentsConfig(rule=rule, freeze_every=100, **kwargs)


def matchmaker(folder: Path, settings: OpponentsConfig, *names: str, **kwargs: Any) -> Matchmaker:
    models = {name: make_model(folder, name) for name in names or ["main"]}
    return Matchmaker(settings, models, folder / "league.json", sides=SIDES, seed=3, **kwargs)


def models_of(maker: Matchmaker) -> Any:
    return maker._versions._models


def freeze(maker: Matchmaker, number: int, learner: str = "main") -> None:
    """Let a learner have so many more versions."""
    for _ in range(number):
        publish(models_of(maker)[learner])
        assert maker.progress({learner: maker._frames[learner] + 100})


def play(maker: Matchmaker, one: str, other: str, won: int, lost: int, drawn: int = 0) -> None:
    scores = [1.0] * won + [0.0] * drawn + [-1.0] * lost
    maker.record([result(one, other, score) for score in scores])


def drawn_shares(maker: Matchmaker, learner: str, number: int = 500) -> dict[str, float]:
    total: Counter[str] = Counter()
    for _ in range(number):
        for opponent in maker.pairings().opponents[learner]:
            total[opponent.name] += opponent.weight  # type: ignore[assignment]
    return {name: weight / number for name, weight in total.items()}


def test_a_version_is_frozen_every_so_many_frames_once_there_is_a_new_one(tmp_path: Path) -> None:
    maker = matchmaker(tmp_path, config())
    model = models_of(maker)["main"]
    publish(model)
    assert maker.progress({"main": 99}) == []
    (copy,) = maker.progress({"main": 100})
    assert copy == ("main", "main:v1", False)
    assert maker.progress({"main": 300}) == []  # the same version
    publish(model)
    (copy,) = maker.progress({"main": 301})
    assert copy.name == "main:v2"
    assert maker.progress({"main": 250}) == []  # an older checkpoint was taken up
    assert maker.versions == ("main:v1", "main:v2")
    row = np.zeros(1, np.float32)
    assert (maker.model("v2")(row) == model(row)).all()
    assert not np.allclose(maker.model("main:v1")(row), model(row))


def test_the_latest_has_its_share_and_the_rest_is_drawn_evenly(tmp_path: Path) -> None:
    maker = matchmaker(tmp_path, config("past", latest_share=0.4))
    assert maker.pairings().opponents == {"main": (Opponent("main", 1.0),)}
    freeze(maker, 3)
    # Each mean is of 500 pairings of 4 draws: five deviations are 0.6 · 5 · √(2/9 / 2000) = 0.03.
    assert drawn_shares(maker, "main") == pytest.approx(
        {"main": 0.4, "main:v1": 0.2, "main:v2": 0.2, "main:v3": 0.2}, abs=0.032
    )
    (only,) = matchmaker(tmp_path / "2", config("latest")).pairings().opponents["main"]
    assert only == ("main", 1.0, None)


def test_prioritised_opponents_are_drawn_by_the_formula(tmp_path: Path) -> None:
    maker = matchmaker(tmp_path, config(latest_share=0.0))
    freeze(maker, 3)
    play(maker, "main", "main:v1", won=9, lost=1)
    play(maker, "main:v2", "main", won=6, lost=2, drawn=2)
    # (1 − x)², x the recent win rate with ten games at one half added to it.
    decay = [0.99**k for k in range(10)]
    v1 = (sum(decay[1:]) + 5) / (sum(decay) + 10)  # the game lost came last
    v2 = (decay[0] + decay[1] + (decay[2] + decay[3]) / 2 + 5) / (sum(decay) + 10)
    hard = np.array([(1 - v1) ** 2, (1 - v2) ** 2, 0.5**2])
    wanted = dict(zip(maker.versions, hard / hard.sum(), strict=True))
    assert dict(zip(maker.versions, maker._weights("main"), strict=True)) == pytest.approx(wanted)
    tolerance = 5 * math.sqrt(0.25 / 2000)
    assert drawn_shares(maker, "main") == pytest.approx(wanted, abs=tolerance)


def test_a_champion_is_met_until_a_version_of_a_better_learner_replaces_it(tmp_path: Path) -> None:
    maker = matchmaker(tmp_path, config("champion", latest_share=0.5))
    freeze(maker, 1)
    assert maker.champion == "main:v1"
    play(maker, "main", "main:v1", won=11, lost=9)
    freeze(maker, 1)
    assert maker.champion == "main:v1"  # that may have been luck
    assert dict(drawn_shares(maker, "main", 1)) == {"main": 0.5, "main:v1": 0.5}
    play(maker, "main", "main:v1", won=60, lost=5)
    freeze(maker, 1)
    assert maker.champion == "main:v3"


def test_matches_against_oneself_or_the_unknown_do_not_count(tmp_path: Path) -> None:
    maker = matchmaker(tmp_path, config(), "main", "rival")
    play(maker, "main", "main", won=3, lost=0)
    play(maker, "main", "main:latest", won=3, lost=0)
    play(maker, "main", "random", won=3, lost=0)
    play(maker, "rival:v7", "main", won=3, lost=0)
    assert not maker.payoff.num_games.any()
    play(maker, "rival", "main:latest", won=2, lost=1)
    assert maker.payoff.num_games.tolist() == [[0, 3], [3, 0]]
    assert maker.payoff.win_rate("rival", "main") > 0.6


def test_roles_of_a_league_meet_whom_they_should(tmp_path: Path) -> None:
    maker = matchmaker(tmp_path, LEAGUE, *ROLES, opponents_at_once=8)
    freeze(maker, 1)
    main, hunter, rival = (drawn_shares(maker, name, 300) for name in ROLES)
    # Half of 0.65 / 0.65 to the past, the rest to itself, as nothing is forgotten of 0.5 < 0.7.
    assert main == pytest.approx({"main": 0.35, "main:v1": 0.65}, abs=0.06)
    assert hunter == {"main:latest": 1.0}
    assert rival == {"main:v1": 1.0}


def test_an_exploiter_that_is_frozen_begins_anew(tmp_path: Path) -> None:
    maker = matchmaker(tmp_path, LEAGUE, *ROLES)
    freeze(maker, 1)
    play(maker, "hunter", "main:latest", won=40, lost=0)
    publish(models_of(maker)["hunter"])
    (copy,) = maker.progress({"main": 101, "hunter": 5, "rival": 5})
    assert copy == ("hunter", "hunter:v1", True)
    assert maker.payoff.win_rate("hunter", "main") == 0.5  # forgotten
    skills = maker.trueskill()
    assert skills["hunter"].rating == 25.0 < skills["hunter:v1"].rating


def test_the_easiest_version_goes_first_but_never_one_that_is_needed(tmp_path: Path) -> None:
    maker = matchmaker(tmp_path, config(versions=3))
    freeze(maker, 3)
    maker.pin("v1")
    play(maker, "main", "main:v1", won=9, lost=0)
    play(maker, "main", "main:v3", won=5, lost=0)
    play(maker, "main", "main:v2", won=1, lost=0)
    freeze(maker, 1)
    assert maker.versions == ("main:v1", "main:v2", "main:v4")
    freeze(maker, 1)
    assert maker.versions == ("main:v1", "main:v4", "main:v5")  # v2: beaten once, v4 never
    play(maker, "main", "main:v3", won=1, lost=0)  # a game that had begun before
    pinned = models_of(maker)["main"]._versions.stored().pinned()
    assert set(pinned) == {1, 2, 4, 5}  # those who play 2 may still ask it
    with pytest.raises(NotFoundError, match=r"version: expected one of main:v1, .* got 'v3'"):
        maker.model("v3")


def test_the_best_version_of_the_trial_stays_on_disk(tmp_path: Path) -> None:
    maker = matchmaker(tmp_path, config(versions=1))
    freeze(maker, 1)
    model = models_of(maker)["main"]
    assert BestVersion(version=1, evaluation_return=1.0, frames=1).offer(tmp_path, model)
    freeze(maker, 3)
    assert maker.versions == ("main:v4",)
    assert set(model._versions.stored().pinned()) == {1, 3, 4}


@pytest.mark.parametrize("settings", [config(), config("champion"), config("past"), LEAGUE])
def test_a_resumed_matchmaker_goes_on_exactly_as_it_would_have(
    tmp_path: Path, settings: OpponentsConfig
) -> None:
    names = tuple(ROLES) if settings.roles else ("main", "rival")
    one = matchmaker(tmp_path, settings, *names)
    freeze(one, 3)
    freeze(one, 2, "rival")
    play(one, "main", "rival:v1", won=5, lost=2)
    one.pin("main:v2")
    one.pairings()
    one.save()
    models = {name: make_model(tmp_path, name) for name in names}
    other = Matchmaker(settings, models, tmp_path / "league.json", sides=SIDES, seed=99)
    row = np.zeros(1, np.float32)
    for maker in (one, other):
        play(maker, "rival", "main:v1", won=3, lost=1)
    for _ in range(5):
        mine, theirs = (maker.pairings().opponents for maker in (one, other))
        for name in names:
            assert [o[:2] for o in mine[name]] == [o[:2] for o in theirs[name]]
            for each, again in zip(mine[name], theirs[name], strict=True):
                if each.model is not None:
                    assert (each.model(row) == again.model(row)).all()  # type: ignore[operator]
    assert one.champion == other.champion
    assert one.pinned == other.pinned
    assert one.elo() == other.elo()
    assert one.trueskill() == other.trueskill()
    for maker in (one, other):
        publish(models_of(maker)["main"])
    assert one.progress({"main": 400}) == other.progress({"main": 400})
    assert one.versions == other.versions


def test_a_version_that_was_frozen_but_not_noted_is_taken_as_it_is(tmp_path: Path) -> None:
    maker = matchmaker(tmp_path, config())
    freeze(maker, 1)
    (tmp_path / "league.json").unlink()  # a kill between the two
    again = matchmaker(tmp_path, config())
    assert [copy.name for copy in again.progress({"main": 100})] == ["main:v1"]
    assert again.model("v1").version == 1


def test_the_viewer_reads_the_file_as_before(tmp_path: Path) -> None:
    maker = matchmaker(tmp_path, LEAGUE, *ROLES)
    freeze(maker, 2)
    play(maker, "main", "main:v1", won=3, lost=1)
    play(maker, "hunter", "main:v2", won=1, lost=1)
    maker.save()
    shown = league_results.league(tmp_path)
    assert shown["players"] == ["main", "hunter", "rival", "main:v1", "main:v2"]
    assert shown["roles"] == ROLES
    rates: Any = shown["rates"]
    assert rates[0][3] == pytest.approx(0.75, abs=0.01)
    assert rates[0][4] is None
    ratings: Any = league_results.ratings(tmp_path)
    elo = maker.elo()
    for index, name in enumerate(ratings["players"]):
        numbers = [ratings[column][index] for column in ("rating", "low", "high")]
        assert numbers == pytest.approx(list(elo[name]), abs=0.06)
        assert elo[name].low < elo[name].rating < elo[name].high
    assert elo["main"].rating > elo["main:v1"].rating
    state = json.loads((tmp_path / "league.json").read_text())
    assert state["format"] == 2
    assert state["versions"] == {"main:v1": 1, "main:v2": 2}


def test_what_a_matchmaker_cannot_use_is_refused_in_words(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="learners: expected one or more, got none"):
        Matchmaker(config(), {}, tmp_path / "league.json", sides=SIDES, seed=0)
    with pytest.raises(ConfigError, match=r"roles: expected those of the learners \['main'\], got"):
        matchmaker(tmp_path, LEAGUE, "main")
    maker = matchmaker(tmp_path, config())
    with pytest.raises(ConfigError, match=r"frames: expected one of \['main'\], got 'other'"):
        maker.progress({"other": 1})
    with pytest.raises(NotFoundError, match="version: expected one of none yet, got 'v1'"):
        maker.pin("v1")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("[", "expected the file of a league of these learners at .*league.json, got .*move it"),
        ("{}", "got format 0: move it away"),
        ('{"format": 1, "versions": {}}', "got format 1: move it away"),
        ('{"format": 2}', "got 'league': move it away"),
    ],
)
def test_a_broken_file_is_refused(tmp_path: Path, content: str, message: str) -> None:
    (tmp_path / "league.json").write_text(content)
    with pytest.raises(ConfigError, match=message):
        matchmaker(tmp_path, config())


def test_files_of_other_learners_or_later_formats_are_refused(tmp_path: Path) -> None:
    maker = matchmaker(tmp_path, config())
    freeze(maker, 1)
    with pytest.raises(ConfigError, match=r"learners {'main': 'main'}, not {'other': 'main'}"):
        matchmaker(tmp_path, config(), "other")
    state = json.loads((tmp_path / "league.json").read_text())
    broken = {**state, "versions": {}}
    (tmp_path / "league.json").write_text(json.dumps(broken))
    with pytest.raises(ConfigError, match="versions: others than the league's"):
        matchmaker(tmp_path, config())
    (tmp_path / "league.json").write_text(json.dumps({**state, "format": 3}))
    with pytest.raises(FormatError):
        matchmaker(tmp_path, config())
