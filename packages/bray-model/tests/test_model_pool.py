import json

import numpy as np
import pytest
import torch

from bray_core.errors import AlreadyExistsError, ConfigError, NotFoundError
from bray_model import Model, ModelPool

RESULTS = {"easy": [1, 1, 1, 0], "even": [1, 0, 0.5], "hard": [0, 0, 0.5, 0], "new": []}
WEIGHTS = {"easy": 1.0, "even": 2.0, "hard": 0.5, "new": 1.0}
# 99.99 % of the chi-square distribution with 3 degrees of freedom lie below.
CHI2 = 21.11


def pool(rule="weights", **settings):
    pool = ModelPool(rule=rule, seed=0, **settings)
    for name, weight in WEIGHTS.items():
        pool.add(name, weight=weight)
        for won in RESULTS[name]:
            pool.record(name, won)
    return pool


def plain(rule, power=2.0, decay=1.0):
    """The formula, written down once more."""
    scores = {}
    for name, results in RESULTS.items():
        discount = [decay**k for k in reversed(range(len(results)))]
        x = np.average(results, weights=discount) if results else 0.5
        factor = {"weights": 1.0, "hard": (1 - x) ** power, "even": x * (1 - x)}[rule]
        scores[name] = WEIGHTS[name] * factor
    return {name: score / sum(scores.values()) for name, score in scores.items()}


@pytest.mark.parametrize("rule", ["weights", "hard", "even"])
@pytest.mark.parametrize("decay", [1.0, 0.9])
def test_draws_follow_the_formula(rule, decay):
    drawn = pool(rule, decay=decay, power=3.0)
    expected = plain(rule, 3.0, decay)
    assert drawn.probabilities() == pytest.approx(expected)
    names = [drawn.sample() for _ in range(20_000)]
    counts = np.array([names.count(name) for name in expected])
    wanted = np.array(list(expected.values())) * len(names)
    assert ((counts - wanted) ** 2 / wanted).sum() < CHI2


def test_a_weight_may_change_and_results_move_the_draws():
    drawn = pool("hard", decay=1.0)
    before = drawn.probabilities()["hard"]
    for _ in range(50):
        drawn.record("hard", 1.0)
    assert drawn.win_rate("hard") == pytest.approx(50.5 / 54)
    assert drawn.probabilities()["hard"] < before / 10
    drawn.set_weight("hard", 1000.0)
    assert drawn.probabilities()["hard"] > before


def test_recent_games_count_more():
    drawn = ModelPool(rule="hard")
    drawn.add("a")
    for won in [0.0] * 500 + [1.0] * 500:
        drawn.record("a", won)
    assert drawn.win_rate("a") == pytest.approx(1 - 0.99**500, abs=1e-3)


@pytest.mark.parametrize("rule", ["hard", "even"])
def test_where_all_are_beaten_the_weights_count(rule):
    drawn = ModelPool(rule=rule)
    drawn.add("a", weight=3)
    drawn.add("b")
    for name in "ab":
        drawn.record(name, 1.0)
    assert drawn.probabilities() == {"a": 0.75, "b": 0.25}


def test_members_are_models_or_names():
    with Model(torch.nn.Linear(2, 2), np.zeros((1, 2), np.float32)) as model:
        opponents: ModelPool[Model] = ModelPool(seed=1)
        clone = model.clone(name="first")
        opponents.add(clone)
        assert opponents.sample() is clone
        assert ("first" in opponents, len(opponents)) == (True, 1)
        with pytest.raises(AlreadyExistsError, match="the pool has 'first' already"):
            opponents.add("first")
        assert opponents.remove("first") is clone
    with pytest.raises(NotFoundError, match="the pool is empty: add a member first"):
        opponents.sample()


@pytest.mark.parametrize("rule", ["weights", "hard"])
def test_it_goes_on_where_it_was_saved(rule):
    drawn = pool(rule)
    state = json.loads(json.dumps(drawn.state()))
    again = ModelPool(rule=rule)
    for name in (*WEIGHTS, "later"):
        again.add(name)
    again.restore(state)
    assert again.win_rate("hard") == drawn.win_rate("hard")
    again.remove("later")
    assert again.probabilities() == drawn.probabilities()
    assert [again.sample() for _ in range(50)] == [drawn.sample() for _ in range(50)]


def test_seeds_repeat_and_differ():
    def draws(seed):
        drawn = ModelPool(seed=seed)
        for name in "abcd":
            drawn.add(name)
        return [drawn.sample() for _ in range(30)]

    assert draws(3) == draws(3) != draws(4)


@pytest.mark.parametrize(
    ("use", "error", "message"),
    [
        (
            lambda p: ModelPool(rule="best"),
            ConfigError,
            "rule: expected one of weights, hard, even",
        ),
        (
            lambda p: ModelPool(power=-1),
            ConfigError,
            "power: expected a finite number of 0 or more",
        ),
        (lambda p: ModelPool(decay=1.5), ConfigError, "decay: expected 0 to 1, got 1.5"),
        (lambda p: p.add("x", weight=0), ConfigError, "weight: expected more than 0, got 0"),
        (lambda p: p.add("x", weight=float("nan")), ConfigError, "weight: expected a finite"),
        (lambda p: p.add("x", weight=float("inf")), ConfigError, "weight: expected a finite"),
        (lambda p: p.add("x", weight="2"), ConfigError, "weight: expected a finite .* got '2'"),
        (lambda p: p.add(3), ConfigError, "member: expected a name or a model, got 3"),
        (lambda p: p.record("easy", 2), ConfigError, "won: expected 0 to 1, got 2"),
        (lambda p: p.record("easy", True), ConfigError, "won: expected 0 to 1, got True"),
        (lambda p: p.record("x", 1), NotFoundError, r"member 'x': not in the pool; it has \['easy"),
        (lambda p: p.remove("x"), NotFoundError, "member 'x': not in the pool"),
        (lambda p: p.set_weight("easy", -1), ConfigError, "weight: expected a finite"),
        (lambda p: p.restore({}), ConfigError, "state: expected what state"),
        (lambda p: p.restore({**p.state(), "rng": {}}), ConfigError, "state: expected what state"),
        (
            lambda p: p.restore({**p.state(), "members": {"easy": {"weight": -1}}}),
            ConfigError,
            "state: expected what state",
        ),
        (
            lambda p: p.restore({**p.state(), "members": {"x": {"weight": 1}}}),
            NotFoundError,
            "member 'x': not in the pool",
        ),
    ],
)
def test_nonsense_is_refused(use, error, message):
    drawn = pool()
    before = drawn.state()
    with pytest.raises(error, match=message):
        use(drawn)
    assert drawn.state() == before
