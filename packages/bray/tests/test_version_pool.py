"""Versions that stay: frozen, played, rated, and found again after a restart."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from bray.games import tournament
from bray.games.opponents import LATEST, Opponents
from bray.games.version_pool import VersionPool, freeze_version, frozen_version
from bray_algo import PolicyValueMLP
from bray_algo.games import Boards
from bray_core.errors import ConfigError, NotFoundError
from bray_model import Model

GAME = Boards(3, 3, 3)
ROW = np.zeros(GAME.observation_size, np.float32)


def make_model(folder: Path, seed: int = 0) -> Model:
    torch.manual_seed(seed)
    network = PolicyValueMLP(GAME.observation_size, GAME.num_actions, hidden=(8,))
    return Model(network, ROW[None], name="policy", directory=folder / "policy")


def publish_another(model: Model) -> None:
    weights = {name: array + np.float32(0.1) for name, array in model.weights()[1].items()}
    model.publish(weights)


def filled(model: Model, path: Path, number: int) -> VersionPool:
    pool = VersionPool(model, path)
    for _ in range(number):
        publish_another(model)
        pool.freeze()
    return pool


def test_a_pool_is_found_again_with_versions_results_and_notes(tmp_path: Path) -> None:
    path = tmp_path / "league.json"
    with make_model(tmp_path) as model:
        pool = filled(model, path, 12)  # more than the model's directory keeps by itself
        assert pool.names == tuple(f"v{i}" for i in range(1, 13))
        pool.payoff.record("v3", "v1", 1.0)
        pool.notes["best"] = "v3"
        pool.save()
        answers = [pool[name](ROW)["logits"] for name in pool.names]
        assert not np.allclose(answers[0], answers[-1])
    with make_model(tmp_path, seed=1) as model:
        again = VersionPool(model, path)
        assert again.names == pool.names
        assert again.notes == {"best": "v3"}
        assert (again.payoff.wins == pool.payoff.wins).all()
        for name, answer in zip(again.names, answers, strict=True):
            assert (again[name](ROW)["logits"] == answer).all()
            assert again[name].version == int(name[1:])
        with pytest.raises(ValueError, match="v12"):
            again.freeze()  # nothing was published since
    assert [p.name for p in tmp_path.iterdir() if p.is_file()] == ["league.json"]


def test_a_frozen_version_is_found_where_its_name_is_not(tmp_path: Path) -> None:
    """On Ray the names of clones do not outlive the cluster; the files do."""
    with make_model(tmp_path) as model:
        publish_another(model)
        version = freeze_version(model, "old")
        answer = model(ROW)["logits"]
        for _ in range(15):
            publish_another(model)
            model.checkpoint()
        with pytest.raises(NotFoundError):
            model.get_clone("other")
        assert (frozen_version(model, "other", version)(ROW)["logits"] == answer).all()


@pytest.mark.parametrize("content", ["", "{}", '{"versions": {"a": 1}, "payoff": 3, "notes": {}}'])
def test_a_broken_file_is_named_and_left_alone(tmp_path: Path, content: str) -> None:
    path = tmp_path / "league.json"
    path.write_text(content)
    with make_model(tmp_path) as model, pytest.raises(ConfigError, match=r"league\.json, got"):
        VersionPool(model, path)
    assert path.read_text() == content


def test_a_table_of_other_players_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "league.json"
    with make_model(tmp_path) as model:
        filled(model, path, 2)
        state = json.loads(path.read_text())
        del state["versions"]["v2"]
        path.write_text(json.dumps(state))
        with pytest.raises(ConfigError, match="its players are not the versions"):
            VersionPool(model, path)


def test_a_tournament_is_completed_and_rated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tournament, "PAIRS_AT_ONCE", 4)
    path = tmp_path / "league.json"
    with make_model(tmp_path) as model:
        pool = filled(model, path, 4)
        for score in (1.0, 1.0, 0.0):
            pool.payoff.record("v1", "v2", score)
        assert asyncio.run(tournament.play_tournament(pool, GAME, 2, seed=0)) == 5 * 2
        games = pool.payoff.num_games
        assert games[0, 1] == 3  # it had more
        assert (games[np.triu_indices(4, 1)] == [3, 2, 2, 2, 2, 2]).all()
        assert asyncio.run(tournament.play_tournament(pool, GAME, 2, seed=0)) == 0
        again = VersionPool(model, path)  # each part was saved
        assert (again.payoff.num_games == games).all()
        assert pool.elo().rating.shape == (4,)


def drawn_shares(opponents: Opponents, number: int = 4000) -> dict[str, float]:
    names, counts = np.unique(opponents.draw(number, 500), return_counts=True)
    return dict(zip(names.tolist(), (counts / number).tolist(), strict=True))


def test_opponents_are_the_latest_and_the_past_the_hard_ones_or_the_best(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    with make_model(tmp_path) as model:
        empty = Opponents("pfsp", VersionPool(model, tmp_path / "empty"), latest=0.2, rng=rng)
        assert set(empty.draw(10, 3)) == {LATEST}
        pool = filled(model, tmp_path / "pool", 3)

        past = drawn_shares(Opponents("past", pool, latest=0.4, rng=rng))
        assert past[LATEST] == pytest.approx(0.4, abs=0.04)
        assert [past[n] for n in pool.names] == pytest.approx([0.2] * 3, abs=0.06)

        hard = Opponents("pfsp", pool, latest=0.0, rng=rng)
        for name, score in (("v1", 1.0), ("v2", 0.0), ("v3", 0.5)):
            for _ in range(90):
                hard.record(name, score)
        hard.record(LATEST, 1.0)  # no player of the pool
        weights = np.array([0.05, 0.95, 0.5]) ** 2
        found = drawn_shares(hard)
        shares = [found.get(n, 0.0) for n in pool.names]
        assert shares == pytest.approx((weights / weights.sum()).tolist(), abs=0.06)

        pool.notes["champion"] = {"best": "v2"}
        best = drawn_shares(Opponents("champion", pool, latest=0.25, rng=rng))
        assert set(best) == {LATEST, "v2"}


def test_a_champion_is_replaced_by_who_beats_it_alone(tmp_path: Path) -> None:
    generator = torch.Generator().manual_seed(0)
    with make_model(tmp_path) as model:
        pool = VersionPool(model, tmp_path / "pool")
        opponents = Opponents("champion", pool, latest=0.5, rng=np.random.default_rng(0))

        def freeze_preferring(cells: list[int], strength: float) -> str:
            weights = {n: np.zeros_like(w) for n, w in model.weights()[1].items()}
            bias = next(n for n, w in weights.items() if w.shape == (9,))
            weights[bias][cells] = strength
            model.publish(weights)
            return asyncio.run(opponents.freeze(GAME, generator))

        random = freeze_preferring([], 0)
        assert opponents.champion is not None
        assert opponents.champion.best == random
        strong = freeze_preferring([0, 4, 8], 4)  # the diagonal at once
        assert opponents.champion.best == strong
        freeze_preferring([1, 3, 5, 7], 4)
        assert opponents.champion.best == strong
        assert pool.payoff.win_rate(strong, random) > 0.6
        again: Any = Opponents("champion", VersionPool(model, pool.path), latest=0.5, rng=None)  # type: ignore[arg-type]
        assert again.champion.best == strong


@pytest.mark.parametrize(
    ("kind", "latest", "message"),
    [("best", 0.5, "opponents: expected one of"), ("past", 1.5, "latest: expected 0 to 1")],
)
def test_nonsense_is_refused(tmp_path: Path, kind: Any, latest: float, message: str) -> None:
    with make_model(tmp_path) as model:
        pool = VersionPool(model, tmp_path / "pool")
        with pytest.raises(ConfigError, match=message):
            Opponents(kind, pool, latest=latest, rng=np.random.default_rng(0))
