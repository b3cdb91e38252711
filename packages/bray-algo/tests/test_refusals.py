"""Numbers out of range, wrong types and arrays of other kinds: a `ValueError` names each."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from loss_cases import CASES

from bray_algo import evolution, pbt, schedules, validation
from bray_algo.distributions import (
    beta,
    categorical,
    discretised,
    gaussian,
    multi_categorical,
    squashed_gaussian,
)
from bray_algo.league import (
    champion,
    elo,
    intervals,
    matchmaking,
    payoff,
    trueskill,
)
from bray_algo.league.trueskill import TrueSkillRating
from bray_algo.losses import (
    a2c,
    c51,
    cloning,
    dqn,
    imitation,
    ppo,
    qmix,
    rnd,
    sac,
    sac_discrete,
    td3,
)
from bray_algo.networks import encoders, initialisation
from bray_algo.networks.mlp import mlp
from bray_algo.networks.noisy import NoisyLinear
from bray_algo.networks.normalisation import RunningNorm, moments
from bray_algo.returns import targets, value_rescaling
from bray_algo.search import mcts

NAN, INF = math.nan, math.inf
N, A = 3, 4
ROWS, COLUMN = torch.zeros(N, A), torch.zeros(N)
INDEX, FLAGS = torch.zeros(N, dtype=torch.int64), torch.zeros(N, dtype=torch.bool)
PAIR = torch.full((N, 2), 0.5)


def refused(name: str) -> Any:
    return pytest.raises(ValueError, match=rf"{name}.*: expected")


TENSORS = [
    (case, name)
    for case, (_, arguments) in CASES.items()
    for name, value in arguments.items()
    if isinstance(value, torch.Tensor)
]


@pytest.mark.parametrize(("case", "name"), TENSORS)
def test_arrays_and_lists_are_not_taken_for_tensors(case: str, name: str) -> None:
    function, arguments = CASES[case]
    if name == "alpha":  # a plain number will do
        return
    for other in (arguments[name].numpy(), arguments[name].tolist()):
        with pytest.raises(ValueError, match=r"expected a torch tensor, got (numpy|builtins)\."):
            function(**{**arguments, name: other})


@pytest.mark.parametrize("kind", [torch.float32, torch.float64, torch.bool, torch.bfloat16])
@pytest.mark.parametrize(
    "function",
    [
        lambda action: categorical.log_prob(ROWS, action),
        lambda action: multi_categorical.log_prob([ROWS], action[:, None]),
        lambda action: dqn.loss(ROWS, action, COLUMN),
        lambda action: dqn.td_error(ROWS, action, COLUMN),
        lambda action: dqn.chosen(ROWS, action),
        lambda action: c51.loss(ROWS[..., None], action, COLUMN[:, None]),
        lambda action: c51.divergence(ROWS[..., None], action, COLUMN[:, None]),
        lambda action: sac_discrete.chosen(ROWS[None], action),
        lambda action: qmix.chosen(ROWS[:, None], action[:, None]),
        lambda action: cloning.smoothed_loss(ROWS, action, ROWS == 0),
    ],
)
def test_actions_are_integers(function: Callable[[Any], Any], kind: torch.dtype) -> None:
    with pytest.raises(ValueError, match=r"action.*: expected integers, got torch\."):
        function(INDEX.to(kind))
    for bad in (-1, A):
        with pytest.raises(ValueError, match=rf"action.*: expected 0 to \d, got .*{bad}"):
            function(torch.full((N,), bad))
    for integers in (torch.int64, torch.int32, torch.uint8, torch.int16):
        function(INDEX.to(integers))


@pytest.mark.parametrize("bad", [NAN, INF, -INF])
@pytest.mark.parametrize(
    "function",
    [
        lambda action: gaussian.log_prob(PAIR, PAIR, action),
        lambda action: squashed_gaussian.log_prob(PAIR, PAIR, action),
        lambda action: beta.log_prob(PAIR, PAIR, action),
        lambda action: discretised.log_prob(torch.zeros(N, 2, 3), action),
        lambda action: discretised.nearest(action, 3),
    ],
)
def test_actions_that_are_not_finite_are_refused(
    function: Callable[[Any], Any], bad: float
) -> None:
    action = PAIR.clone()
    function(action)
    action[1, 1] = bad
    with refused("action"):
        function(action)
    with validation.validating(False):
        function(action)


@pytest.mark.parametrize("bad", [-0.1, 1.1])
def test_a_beta_has_actions_from_0_to_1(bad: float) -> None:
    with refused("action"):
        beta.log_prob(PAIR, PAIR, torch.full((N, 2), bad))
    for end in (0.0, 1.0):
        assert beta.log_prob(PAIR, PAIR, torch.full((N, 2), end)).isfinite().all()


@pytest.mark.parametrize("bounds", [(1.0, 1.0), (2.0, -2.0), (NAN, 1.0), (0.0, INF), (-INF, 1.0)])
def test_low_is_below_high(bounds: tuple[float, float]) -> None:
    columns = [torch.tensor([bound, bound]) for bound in bounds]
    for low, high in (bounds, columns, (columns[0], bounds[1])):
        for function in (
            lambda low, high: td3.smoothed(PAIR, low=low, high=high),
            lambda low, high: discretised.values(INDEX[:2], 3, low, high),
            lambda low, high: discretised.nearest(PAIR, 3, low, high),
            lambda low, high: discretised.log_prob(torch.zeros(N, 2, 3), PAIR, low, high),
            lambda low, high: discretised.mode(torch.zeros(N, 2, 3), low, high),
        ):
            with refused("low, high"):
                function(low, high)
    with refused("high|low"):
        c51.atoms(*bounds)
    with pytest.raises(ValueError, match="expected"):
        pbt.HyperparameterRange(low=bounds[0], high=bounds[1])


def actor_critic(**numbers: float) -> Any:
    return a2c.loss(COLUMN, COLUMN, COLUMN, COLUMN, COLUMN, **numbers)


def schedule(function: Callable[..., float], **numbers: float) -> float:
    return function(**{"step": 1, "start": 1.0, "end": 0.5, "num_steps": 10, **numbers})


def strategy(**numbers: Any) -> Any:
    return evolution.EvolutionStrategy(**{"parameters": COLUMN, "population": 2, **numbers})


def segment(name: str, **numbers: float) -> Any:
    function, arguments = CASES[name]
    return function(**{**arguments, **numbers})


POSITIVE, LIMIT, NOT_NEGATIVE, FRACTION, FINITE, COUNT = (
    [0.0, -1.0, NAN, INF, "1", None],
    [0.0, -1.0, NAN, "1"],
    [-1.0, NAN, INF, -INF, "1", None],
    [-0.1, 1.5, NAN, INF, "1", None],
    [NAN, INF, -INF, "1", None],
    [0, -1, 1.5, NAN, "1"],
)
NUMBERS: list[tuple[str, list[Any], Callable[[Any], Any]]] = [
    ("value_coefficient", NOT_NEGATIVE, lambda x: actor_critic(value_coefficient=x)),
    ("entropy_coefficient", NOT_NEGATIVE, lambda x: actor_critic(entropy_coefficient=x)),
    ("entropy_coefficient", NOT_NEGATIVE, lambda x: segment("ppo", entropy_coefficient=x)),
    ("entropy_coefficient", NOT_NEGATIVE, lambda x: segment("impala", entropy_coefficient=x)),
    ("entropy_coefficient", NOT_NEGATIVE, lambda x: segment("appo", entropy_coefficient=x)),
    ("entropy_coefficient", NOT_NEGATIVE, lambda x: segment("mappo", entropy_coefficient=x)),
    ("value_coefficient", NOT_NEGATIVE, lambda x: segment("alphazero", value_coefficient=x)),
    ("clip", LIMIT, lambda x: segment("ppo", clip=x)),
    ("value_clip", LIMIT, lambda x: segment("ppo", value_clip=x)),
    ("dual_clip", [1.0, 0.5, NAN], lambda x: segment("ppo", dual_clip=x)),
    ("kl_coefficient", NOT_NEGATIVE, lambda x: segment("ppo kl", kl_coefficient=x)),
    ("kl_coefficient", NOT_NEGATIVE, lambda x: ppo.next_kl_coefficient(x, 0.1, target_kl=1)),
    ("target_kl", POSITIVE, lambda x: ppo.next_kl_coefficient(1.0, 0.1, target_kl=x)),
    ("max_behaviour_ratio", LIMIT, lambda x: segment("appo", max_behaviour_ratio=x)),
    ("rho_bar", LIMIT, lambda x: segment("vtrace", rho_bar=x)),
    ("c_bar", LIMIT, lambda x: segment("vtrace", c_bar=x)),
    *(("gamma", FRACTION, lambda x, n=name: segment(n, gamma=x)) for name in ("gae", "vtrace")),
    ("lambda_", FRACTION, lambda x: segment("retrace", lambda_=x)),
    ("num_steps", COUNT, lambda x: segment("n_step", num_steps=x)),
    ("gamma", FRACTION, lambda x: targets.discount(x, FLAGS)),
    ("steps", NOT_NEGATIVE, lambda x: targets.discount(0.9, FLAGS, x)),
    ("steps", [-1], lambda x: targets.discount(0.9, FLAGS, torch.tensor([1, 2, x]))),
    ("epsilon", FRACTION, lambda x: dqn.epsilon_greedy(ROWS, x)),
    ("epsilon", [-0.1, 1.5, NAN], lambda x: dqn.epsilon_greedy(ROWS, torch.tensor(x))),
    ("huber", POSITIVE, lambda x: dqn.huber_error(COLUMN, x)),
    ("alpha", NOT_NEGATIVE, lambda x: segment("sac actor", alpha=x)),
    ("alpha", [-1.0, NAN, INF], lambda x: segment("sac target", alpha=torch.tensor(x))),
    ("alpha", [[0.1, 0.2]], lambda x: segment("sac target", alpha=torch.tensor(x))),
    ("alpha", NOT_NEGATIVE, lambda x: segment("sac_discrete target", alpha=x)),
    ("target_entropy", FINITE, lambda x: segment("sac temperature", target_entropy=x)),
    ("temperature", POSITIVE, lambda x: cloning.advantage_weight(COLUMN, temperature=x)),
    ("maximum", POSITIVE, lambda x: cloning.advantage_weight(COLUMN, temperature=1.0, maximum=x)),
    (
        "imitation_weight",
        NOT_NEGATIVE,
        lambda x: imitation.mixed_loss((COLUMN[0], {}), (COLUMN[0], {}), imitation_weight=x),
    ),
    ("noise", POSITIVE, lambda x: td3.smoothed(PAIR, noise=x)),
    ("noise_clip", LIMIT, lambda x: td3.smoothed(PAIR, noise_clip=x)),
    ("step", [-1, NAN], lambda x: td3.is_actor_step(x)),
    ("delay", COUNT, lambda x: td3.is_actor_step(1, x)),
    *(
        (name, bad, lambda x, f=function, n=name: schedule(f, **{n: x}))
        for function in (schedules.linear, schedules.cosine, schedules.exponential)
        for name, bad in (
            ("start", FINITE),
            ("end", FINITE),
            ("step", NOT_NEGATIVE),
            ("num_steps", POSITIVE),
            ("begin", FINITE),
        )
    ),
    ("step", NOT_NEGATIVE, lambda x: schedules.piecewise(x, [(0, 1.0), (9, 0.5)])),
    ("points", FINITE, lambda x: schedules.piecewise(1, [(0, 1.0), (9, x)])),
    ("sigma", POSITIVE, lambda x: strategy(sigma=x)),
    ("learning_rate", POSITIVE, lambda x: strategy(learning_rate=x)),
    ("weight_decay", NOT_NEGATIVE, lambda x: strategy(weight_decay=x)),
    ("seed", [-1, 0.5], lambda x: strategy(seed=x)),
    ("sigma", POSITIVE, lambda x: evolution.candidate(COLUMN, (0, 0), 1, sigma=x)),
    ("index", [-1, 0.5], lambda x: evolution.candidate(COLUMN, (0, 0), x, sigma=1.0)),
    ("sigma", POSITIVE, lambda x: evolution.gradient((0, 0), PAIR[0], size=2, sigma=x)),
    ("key, pair", [-1, 0.5, "a"], lambda x: evolution.perturbation((0, x), 0, 2)),
    ("weight", [NAN, INF], lambda x: evolution.gradient((0,), PAIR[0] * x, size=2, sigma=1.0)),
    ("gamma", FRACTION, lambda x: rnd.discounted_sums(ROWS, torch.ones(A).long(), gamma=x)),
    ("clip", LIMIT, lambda x: RunningNorm([2], clip=x)),
    ("epsilon", POSITIVE, lambda x: RunningNorm([2], epsilon=x)),
    ("epsilon", NOT_NEGATIVE, lambda x: value_rescaling.rescale(COLUMN, x)),
    ("epsilon", NOT_NEGATIVE, lambda x: value_rescaling.unrescale(COLUMN, x)),
    ("sigma", [0.0, NAN, INF], lambda x: NoisyLinear(2, 2, x)),
    ("gain", FINITE, lambda x: mlp([2, 2], output_gain=x)),
    ("gain", FINITE, lambda x: initialisation.initialise_(mlp([2, 2]), "zeros", x)),
    ("longest", POSITIVE, lambda x: encoders.sinusoidal(COLUMN, 4, x)),
    ("rating", FINITE, lambda x: elo.elo_expected(x, 0.0)),
    ("score", FRACTION, lambda x: elo.elo_update(0.0, 0.0, x)),
    ("k", NOT_NEGATIVE, lambda x: elo.elo_update(0.0, 0.0, 1.0, x)),
    ("prior_sigma", POSITIVE, lambda x: elo.fit_elo([[0]], [[0]], prior_sigma=x)),
    ("mean", FINITE, lambda x: elo.fit_elo([[0]], [[0]], mean=x)),
    ("confidence", [0.0, 1.0, -1.0, NAN], lambda x: elo.fit_elo([[0]], [[0]]).interval(x)),
    ("confidence", [0.0, 1.0, -1.0, NAN], lambda x: TrueSkillRating().interval(x)),
    (
        "sigma",
        [-1.0, NAN],
        lambda x: trueskill.chances(TrueSkillRating(1, x), TrueSkillRating()),
    ),
    (
        "mu",
        [NAN],
        lambda x: trueskill.update(TrueSkillRating(x), TrueSkillRating(), 1.0),
    ),
    (
        "tau",
        NOT_NEGATIVE,
        lambda x: trueskill.update(*2 * (TrueSkillRating(),), 1.0, tau=x),
    ),
    ("beta", POSITIVE, lambda x: trueskill.chances(*2 * (TrueSkillRating(),), beta=x)),
    ("a", [0.0, -1.0, NAN, INF], lambda x: intervals.beta_cdf(x, 1.0, 0.5)),
    ("x", [-0.1, 1.1, NAN], lambda x: intervals.beta_cdf(1.0, 1.0, x)),
    ("probability", FRACTION, lambda x: intervals.beta_quantile(1.0, 1.0, x)),
    ("prior_games", POSITIVE, lambda x: intervals.beta_interval(1, 2, prior_games=x)),
    ("prior_games", NOT_NEGATIVE, lambda x: payoff.PayoffTable(["a"]).matrix(prior_games=x)),
    ("decay", FRACTION, lambda x: payoff.PayoffTable(decay=x)),
    ("num_pairs", [-1, 0.5], lambda x: payoff.PayoffTable(["a"]).fewest_games(x)),
    ("width", NOT_NEGATIVE, lambda x: matchmaking.difficulty_weights([0.5], 0.5, width=x)),
    ("num_versions", COUNT, lambda x: matchmaking.past_weights(x)),
    ("max_games", LIMIT, lambda x: champion.promotion_verdict(1, 2, max_games=x)),
    ("num_simulations", COUNT, lambda x: mcts.SearchConfig(num_simulations=x)),
    ("noise_fraction", FRACTION, lambda x: mcts.SearchConfig(noise_fraction=x)),
]


@pytest.mark.parametrize(
    ("name", "bad", "function"), NUMBERS, ids=[f"{i}-{n[0]}" for i, n in enumerate(NUMBERS)]
)
def test_numbers_out_of_range_are_refused(
    name: str, bad: list[Any], function: Callable[[Any], Any]
) -> None:
    for number in bad:
        with refused(name):
            function(number)


def test_limits_may_be_infinite() -> None:
    for name in ("clip", "value_clip", "dual_clip"):
        segment("ppo", **{name: INF})
    segment("vtrace", rho_bar=INF, c_bar=INF)
    assert elo.elo_expected(0.0, 1e9) == pytest.approx(0.0, abs=1e-200)
    assert elo.elo_expected(1e9, 0.0) == 1.0
    assert sac.constant(np.float32(0.5)) == 0.5


@pytest.mark.parametrize(
    "function",
    [
        categorical.log_probs,
        categorical.entropy,
        categorical.mode,
        categorical.sample,
        lambda x: categorical.mask(x, ROWS == 0),
        lambda x: categorical.kl(ROWS, x),
        lambda x: multi_categorical.entropy([x]),
        lambda x: gaussian.entropy(x, ROWS),
        lambda x: gaussian.sample(x, ROWS),
        lambda x: squashed_gaussian.entropy(ROWS, x),
        lambda x: beta.entropy(x, ROWS + 1),
        lambda x: beta.parameters(x),
        lambda x: discretised.ordinal(x),
        lambda x: dqn.greedy(x),
        lambda x: dqn.epsilon_greedy(x, 0.1),
        lambda x: dqn.duelling(COLUMN, x),
        lambda x: cloning.advantage_filter(x),
        lambda x: value_rescaling.rescale(x),
        lambda x: moments(x),
        lambda x: RunningNorm([A])(x),
        lambda x: RunningNorm([A]).update(x),
        lambda x: encoders.sinusoidal(x, 4),
        lambda x: evolution.centred_ranks(x),
    ],
)
def test_functions_of_one_tensor_take_no_array(function: Callable[[Any], Any]) -> None:
    for other in (ROWS.numpy(), ROWS.tolist(), None):
        with pytest.raises(ValueError, match=r"expected a torch tensor, got "):
            function(other)
