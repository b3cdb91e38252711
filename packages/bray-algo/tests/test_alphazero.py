"""The loss against plain loops, and games replayed by the rules."""

from __future__ import annotations

import functools
import math
from typing import Any

import numpy as np
import pytest
import torch

from bray_algo.games import TIC_TAC_TOE
from bray_algo.losses.alphazero import loss as alphazero_loss
from bray_algo.networks.board_network import BoardNetwork
from bray_algo.search.alphazero import SelfPlay, evaluator
from bray_algo.search.mcts import SearchConfig

N, A = 5, 4
QUIET = SearchConfig(num_simulations=60, noise_fraction=0)


def batch(seed: int = 0) -> list[torch.Tensor]:
    rng = np.random.default_rng(seed)
    policy = rng.dirichlet(np.ones(A), N)
    arrays = [rng.normal(size=(N, A)), rng.uniform(-1, 1, N), policy, rng.choice([-1.0, 0, 1], N)]
    return [torch.from_numpy(array) for array in arrays]


def test_the_loss_is_the_papers_sum() -> None:
    logits, value, policy, outcome = batch()
    loss, terms = alphazero_loss(logits, value, policy, outcome, value_coefficient=0.7)
    want = {"policy_loss": 0.0, "value_loss": 0.0, "entropy": 0.0, "kl": 0.0}
    for n in range(N):
        total = sum(math.exp(x) for x in logits[n].tolist())
        want["value_loss"] += (float(outcome[n]) - float(value[n])) ** 2 / N
        for a in range(A):
            pi, p = float(policy[n, a]), math.exp(float(logits[n, a])) / total
            want["policy_loss"] -= pi * math.log(p) / N
            want["entropy"] -= pi * math.log(pi) / N
            want["kl"] += pi * math.log(pi / p) / N
    assert {name: float(term) for name, term in terms.items()} == pytest.approx(want)
    assert float(loss) == pytest.approx(want["policy_loss"] + 0.7 * want["value_loss"])


def test_gradients() -> None:
    logits, value, policy, outcome = batch(1)
    assert torch.autograd.gradcheck(
        lambda x, v: alphazero_loss(x, v, policy, outcome)[0],
        (logits.requires_grad_(), value.requires_grad_()),
    )


def test_illegal_actions_cost_nothing() -> None:
    logits, value, policy, outcome = batch(2)
    policy = torch.cat([policy, torch.zeros(N, 1)], 1)
    masked = torch.cat([logits, torch.full((N, 1), -math.inf)], 1).requires_grad_()
    loss, _ = alphazero_loss(masked, value, policy, outcome)
    want, _ = alphazero_loss(logits, value, policy[:, :A], outcome)
    assert loss.detach() == pytest.approx(want)
    loss.backward()
    assert masked.grad is not None
    assert not masked.grad[:, A].any()
    assert masked.grad.isfinite().all()
    one = torch.eye(A, dtype=torch.float64)[:1].repeat(N, 1)
    assert float(alphazero_loss(logits, value, one, outcome)[1]["entropy"]) == 0


def knowing(observation: Any, num_actions: int) -> tuple[Any, Any]:
    """Arbitrary, but a function of the position alone."""
    flat = observation.reshape(len(observation), -1)
    weights = np.sin(np.arange(flat.shape[1] * 10).reshape(-1, 10) * 1.7)
    features = np.tanh(flat @ weights)
    return features[:, :num_actions] * 3, features[:, 9]


def test_games_are_told_by_the_player_to_move() -> None:
    game, sizes = TIC_TAC_TOE, []

    def counting(observation: Any) -> Any:
        sizes.append(len(observation))
        return knowing(observation, 9)

    config = SearchConfig(num_simulations=16)
    rng = np.random.default_rng(0)
    players = SelfPlay(game, 12, config=config, rng=rng, num_random_moves=9)
    parts = [players.play(counting) for _ in range(14)]
    assert max(sizes) == 12
    observation, policy, outcome = (np.concatenate(column) for column in zip(*parts, strict=True))
    assert policy.sum(1) == pytest.approx(np.ones(len(policy)))
    boards = observation[:, 0] - observation[:, 1]
    assert not policy[boards.reshape(-1, 9) != 0].any()
    starts = np.flatnonzero(np.abs(boards).sum((1, 2)) == 0)
    assert len(starts) == players.games_ended > 12  # an ended game made room for another
    for start, end in zip(starts, [*starts[1:], len(boards)], strict=True):
        assert (outcome[start + 1 : end] == -outcome[start : end - 1]).all()
        for t in range(start, end - 1):  # a stone of the mover, seen from the other side
            assert (-boards[t + 1] - boards[t]).sum() == 1
        if end - start < 9:
            assert outcome[end - 1] == 1  # only the last mover can have won


def test_later_moves_are_the_searchs_best() -> None:
    game = TIC_TAC_TOE

    def first(seed: int) -> Any:
        players = SelfPlay(
            game, 1, config=QUIET, rng=np.random.default_rng(seed), num_random_moves=0
        )
        parts = [players.play(functools.partial(knowing, num_actions=9)) for _ in range(9)]
        return np.concatenate([part.observation for part in parts]).tolist()

    assert first(1) == first(2)  # nothing was drawn


def test_the_network_of_boards() -> None:
    outputs = BoardNetwork((6, 7), 7, hidden=(8,))(torch.ones(5, 2, 6, 7))
    assert outputs["logits"].shape == (5, 7)
    assert outputs["value"].shape == (5,)
    assert outputs["value"].abs().max() < 1
    with pytest.raises(ValueError, match="window: expected 3 or less, got 4"):
        BoardNetwork((3, 3), 9)
    with pytest.raises(ValueError, match="expected positive numbers"):
        BoardNetwork((6, 7), 7, hidden=())


def test_values_of_a_network_are_clipped() -> None:
    logits, value = evaluator(lambda x: {"logits": x, "value": x[:, 0]})(
        np.array([[5.0, 1], [-7, 1]], np.float32)
    )
    assert np.asarray(value).tolist() == [1, -1]
    assert np.asarray(logits).shape == (2, 2)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({0: torch.zeros(N)}, r"logits: expected \[N, A\]"),
        ({2: torch.zeros(N, A + 1)}, r"policy: expected shape \(5, 4\), got \(5, 5\)"),
        ({1: torch.zeros(N, 1)}, r"value: expected shape \(5,\), got \(5, 1\)"),
        ({3: torch.zeros(N + 1)}, r"target: expected shape \(5,\), got \(6,\)"),
    ],
)
def test_wrong_shapes_are_refused(change: dict[int, torch.Tensor], message: str) -> None:
    columns = [change.get(i, column) for i, column in enumerate(batch())]
    with pytest.raises(ValueError, match=message):
        alphazero_loss(*columns)


def test_nonsense_is_refused() -> None:
    with pytest.raises(ValueError, match="num_games: expected 1 or more, got 0"):
        SelfPlay(TIC_TAC_TOE, 0, config=QUIET, rng=np.random.default_rng(0))
