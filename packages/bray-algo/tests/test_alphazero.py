"""The loss against plain loops, and games replayed by the rules."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from bray_algo.alphazero import alphazero_loss, evaluator, self_play
from bray_algo.games import TicTacToe
from bray_algo.mcts import SearchConfig, Tree, search

N, A = 5, 4


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


class Network(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Linear(18, 10)

    def forward(self, observation: torch.Tensor) -> dict[str, torch.Tensor]:
        out = self.body(observation.flatten(1))
        return {"logits": out[:, :9], "value": 3 * out[:, 9]}


@pytest.mark.parametrize("keep_tree", [True, False])
def test_games_are_told_by_the_player_to_move(keep_tree: bool) -> None:
    torch.manual_seed(0)
    sizes: list[int] = []
    evaluate = evaluator(Network())

    def counting(observation: Any) -> Any:
        sizes.append(len(observation))
        return evaluate(observation)

    episodes = self_play(
        TicTacToe(),
        counting,
        6,
        config=SearchConfig(num_simulations=16, leaves=4),
        rng=np.random.default_rng(0),
        keep_tree=keep_tree,
    )
    assert len(episodes) == 6
    assert max(sizes) > 16  # leaves of many games in one batch
    lengths = set()
    for episode in episodes:
        boards = episode.observation[:, 0] - episode.observation[:, 1]
        moves = [*range(1, len(boards)), None]
        for t, following in enumerate(moves):
            assert not episode.policy[t][boards[t].ravel() != 0].any()
            if following is not None:  # a stone of the mover, seen from the other side
                assert (-boards[following] - boards[t]).sum() == 1
        assert episode.policy.sum(1) == pytest.approx(np.ones(len(boards)))
        assert (episode.outcome[1:] == -episode.outcome[:-1]).all()
        if len(boards) < 9:
            assert episode.outcome[-1] == 1  # only the last mover can have won
        lengths.add(len(boards))
    assert len(lengths) > 1


def test_the_last_moves_are_the_searchs_best() -> None:
    def play(seed: int) -> Any:
        config = SearchConfig(num_simulations=8, noise_fraction=0, leaves=1)
        rng = np.random.default_rng(seed)
        evaluate = evaluator(Network())
        torch.manual_seed(0)
        return self_play(TicTacToe(), evaluate, 1, config=config, rng=rng, num_random_moves=0)[0]

    torch.manual_seed(5)
    first = play(0)
    torch.manual_seed(5)
    again = play(1)
    assert first.observation.tolist() == again.observation.tolist()  # nothing was drawn


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
    rng = np.random.default_rng(0)
    with pytest.raises(ValueError, match="num_games: expected 1 or more, got 0"):
        self_play(TicTacToe(), evaluator(Network()), 0, config=SearchConfig(), rng=rng)
    tree = Tree(TicTacToe(), TicTacToe().initial())
    search([], evaluator(Network()), SearchConfig(), rng)  # no tree: nothing to do
    assert not tree.visits.any()
