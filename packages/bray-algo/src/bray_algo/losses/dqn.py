"""Deep Q-learning over flat batches `[N]`: double, duelling, n-step, prioritised.

n-step returns come in through `reward` (their sum) and `discount` (γⁿ, 0 after termination: see
`targets.discount`), prioritised replay through `weight` and `td_error`, whose absolute values are
the new priorities.

Rainbow (Hessel et al. 2018) is these parts put together: a network of `noisy.NoisyLinear` layers
whose streams `duelling` joins into logits `[N, A, K]`; `c51.target` with the online network's
logits (double) and an n-step reward and discount; `c51.loss` with the replay's weights; and
`c51.divergence` as new priorities. tests/test_rainbow.py does so in thirty lines.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import huber_loss

from bray_algo.losses.reductions import LossTerms, weighted_mean
from bray_algo.precision import wide
from bray_algo.returns.targets import bootstrap, check_legal
from bray_algo.validation.scalars import check_fraction, check_positive
from bray_algo.validation.tensors import (
    check_flags,
    check_floats,
    check_numbers,
    check_rank,
    check_shape,
)
from bray_algo.validation.values import check_action, check_finite, check_within


def duelling(value: Tensor, advantage: Tensor) -> Tensor:
    """Return V + A − mean A over the actions, in the shape of `advantage`.

    A state's value is learned from every action, not only from the one taken; taking the mean off
    fixes what is value and what advantage. Wang et al. 2016, "Dueling network architectures for
    deep reinforcement learning", equation 9.

    Args:
        value: State values V, `[N]`, or `[N, K]` for the K logits or quantiles of a distribution.
        advantage: Advantages A of each action, `[N, A]` or `[N, A, K]`.

    Raises:
        ValueError: shapes do not agree; every function of this file refuses that.
    """
    check_numbers("advantage", advantage)
    if advantage.ndim < 2:
        raise ValueError(f"advantage: expected [N, A, …], got shape {tuple(advantage.shape)}")
    check_shape("value", value, advantage.shape[:1] + advantage.shape[2:])
    return value.unsqueeze(1) + advantage - advantage.mean(1, keepdim=True)


def chosen(q: Tensor, action: Tensor) -> Tensor:
    """Return the entries of `[N, A, …]` at the actions (integers `[N]`): `[N, …]`."""
    check_numbers("q", q)
    if q.ndim < 2 or not q.numel():
        raise ValueError(f"q: expected [N, A, …], not empty, got shape {tuple(q.shape)}")
    check_action("action", action, q.shape[:1], q.shape[1])
    index = action.long().reshape(-1, *[1] * (q.ndim - 1))
    return q.gather(1, index.expand(-1, 1, *q.shape[2:])).squeeze(1)


def greedy(q: Tensor, legal: Tensor | None = None) -> Tensor:
    """Return the best action `[…]` by values `[…, A]`, among the `legal` (bool, likewise) if given.

    A row without a legal action gives action 0.
    """
    check_numbers("q", q)
    if legal is not None:
        check_shape("legal", legal, q.shape)
        check_flags("legal", legal, q.shape)
        q = wide(q)
        q = q.masked_fill(~legal, -torch.inf)
    return q.argmax(-1)


def epsilon_greedy(q: Tensor, epsilon: Tensor | float) -> Tensor:
    """Return logits `[…, A]` of the policy that takes the best action, but with ε any at all.

    Mnih et al. 2015, Methods. An action that it never takes (ε = 0) has a probability below 1e-8.

    Args:
        q: Action values, `[…, A]`.
        epsilon: Share ε of random actions, 0 to 1, a number or a tensor that broadcasts to
            `[…, 1]`. Usually 1 at the beginning and 0.01 to 0.1 after some share of the training:
            falling too early misses what is rare, staying high learns of poor play alone.

    Raises:
        ValueError: ε is not within 0 to 1.
    """
    check_floats("q", q)
    if isinstance(epsilon, Tensor):
        check_within(0.0, 1.0, epsilon=epsilon)
    else:
        check_fraction("epsilon", epsilon)
    q = wide(q)  # 1e-9 is 0 in half precision
    best = torch.nn.functional.one_hot(q.argmax(-1), q.shape[-1])
    probability = (1 - epsilon) * best + epsilon / q.shape[-1]
    return probability.clamp(min=1e-9).log()


def target(
    next_q: Tensor,
    reward: Tensor,
    discount: Tensor,
    *,
    next_online_q: Tensor | None = None,
    next_legal: Tensor | None = None,
) -> Tensor:
    """Return r + d Q'(s', a'), `[N]`, where a' is the greedy action.

    Mnih et al. 2015, "Human-level control through deep reinforcement learning", Algorithm 1; with
    `next_online_q` van Hasselt et al. 2016, "Deep reinforcement learning with double Q-learning",
    section "Double DQN".

    Args:
        next_q: Action values of the target network at the next observation, `[N, A]`.
        reward: Reward r, or the discounted sum of n rewards, `[N]`.
        discount: γⁿ, or 0 where the episode terminated, `[N]`: see `targets.discount`.
        next_online_q: Action values of the online network there, `[N, A]`: it then chooses a', so
            that noise in one network is not taken for value. None: the target network chooses.
        next_legal: Actions to choose among, bool `[N, A]`; a row without any needs discount 0.
    """
    check_rank("next_q", next_q, "N, A")
    check_numbers("next_q", next_q)
    check_shape("reward", reward, next_q.shape[:1])
    check_shape("discount", discount, next_q.shape[:1])
    if next_legal is not None:
        check_legal(next_legal, next_q, discount)
    if next_online_q is not None:
        check_shape("next_online_q", next_online_q, next_q.shape)
    chooser = next_q if next_online_q is None else next_online_q
    # One network says which action, the other what it is worth: their errors differ.
    return bootstrap(reward, discount, chosen(next_q, greedy(chooser, next_legal)), name="next_q")


def td_error(q: Tensor, action: Tensor, target: Tensor) -> Tensor:
    """Return y − Q(s, a), `[N]`; its absolute value is a prioritised replay's priority."""
    taken = wide(chosen(q, action))
    check_numbers("target", target)
    check_shape("target", target, taken.shape)
    check_finite(q=taken, target=target)
    return target.detach() - taken


def loss(
    q: Tensor,
    action: Tensor,
    target: Tensor,
    *,
    weight: Tensor | None = None,
    huber: float | None = 1.0,
) -> tuple[Tensor, LossTerms]:
    """Return the weighted mean of the Huber loss of the errors y − Q(s, a).

    Mnih et al. 2015, Algorithm 1 and Methods (errors clipped to ±1 are a Huber loss); weights of
    Schaul et al. 2016, "Prioritized experience replay", Algorithm 1.

    Args:
        q: Action values of the online network, `[N, A]`.
        action: Actions taken, integers `[N]`.
        target: y, as `target` gives it, `[N]`, a constant.
        weight: Importance weights of a prioritised replay, `[N]`; None is 1 for all.
        huber: Size of an error from which on the loss is linear, not ½ error²; in units of the
            return, usually 1. Small ones let no outlier pull, but learn great values slowly; None
            is ½ error² everywhere.

    Returns:
        The loss, and `td_error` (mean of absolute values) and `q` (mean over the actions taken).
    """
    check_rank("q", q, "N, A")
    taken = wide(chosen(q, action))
    check_numbers("target", target)
    check_shape("target", target, taken.shape)
    check_finite(q=taken, target=target)
    # The target has no gradient: the value is to follow what came, not the reverse.
    error = target.detach() - taken
    rows = 0.5 * error.square() if huber is None else huber_error(error, huber)
    with torch.no_grad():
        terms = {"td_error": error.abs().mean(), "q": taken.mean()}
    return weighted_mean(rows, weight), terms


def huber_error(error: Tensor, delta: float) -> Tensor:
    """Return ½ error² within ±delta and delta (|error| − ½ delta) beyond, in the same shape.

    Huber 1964, "Robust estimation of a location parameter".
    """
    check_positive("huber", delta)
    check_numbers("error", error)
    error = wide(error)
    return huber_loss(error, torch.zeros_like(error), reduction="none", delta=delta)
