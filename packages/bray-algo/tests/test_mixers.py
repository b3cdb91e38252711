from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from bray_algo.losses import qmix
from bray_algo.networks import mixers
from bray_algo.returns import targets

M, N, A, S = 5, 3, 4, 6


def test_vdn_is_the_sum() -> None:
    q = torch.randn(M, N)
    assert mixers.vdn(q).tolist() == pytest.approx([sum(row) for row in q.tolist()], abs=1e-5)


def test_qmix_is_the_papers_network() -> None:
    torch.manual_seed(0)
    mixer = mixers.QMix(N, S, hidden=2).double()
    q, state = torch.randn(M, N).double(), torch.randn(M, S).double()
    got = mixer(q, state)

    def layer(linear: nn.Module, x: np.ndarray) -> np.ndarray:
        return linear.weight.detach().numpy() @ x + linear.bias.detach().numpy()

    for m in range(M):
        s = state[m].numpy()
        weight_1 = np.abs(layer(mixer.weight_1, s)).reshape(N, 2)
        hidden = q[m].numpy() @ weight_1 + layer(mixer.bias_1, s)
        hidden = np.where(hidden > 0, hidden, np.exp(hidden) - 1)
        bias_2 = layer(mixer.bias_2[2], np.maximum(layer(mixer.bias_2[0], s), 0))
        want = hidden @ np.abs(layer(mixer.weight_2, s)) + bias_2[0]
        assert got[m].item() == pytest.approx(want)


@given(st.integers(0, 200))
def test_qmix_never_falls_where_an_agents_value_rises(seed: int) -> None:
    torch.manual_seed(seed)
    mixer = mixers.QMix(N, S)
    q, state = 10 * torch.randn(M, N), 10 * torch.randn(M, S)
    q.requires_grad_()
    mixer(q, state).sum().backward()
    assert q.grad is not None
    assert (q.grad >= 0).all()


def test_so_the_agents_own_greedy_actions_are_the_joint_one() -> None:
    torch.manual_seed(1)
    mixer = mixers.QMix(2, S)
    q, state = torch.randn(1, 2, A), torch.randn(1, S)
    joint = {
        pair: mixer(qmix.chosen(q, torch.tensor([pair])), state).item()
        for pair in itertools.product(range(A), repeat=2)
    }
    best = qmix.greedy(q)[0].tolist()
    assert joint[tuple(best)] == pytest.approx(max(joint.values()))


PAYOFF = {1: [[7.0, 7.0], [7.0, 7.0]], 2: [[0.0, 1.0], [1.0, 8.0]]}
"""The two-step game of Rashid et al. 2018, §5 (table 1): in state 0, agent 0 chooses 1 or 2."""
GAMMA = 0.99


def learn(kind: str) -> tuple[Tensor, Tensor]:
    """Return the joint values of state 0 and of state 2, `[A, A]` each, learned from all pairs."""
    torch.manual_seed(0)
    pairs = list(itertools.product(range(2), repeat=2))
    state = torch.arange(3).repeat_interleave(4)
    action = torch.tensor(pairs * 3)
    payoff = [0.0] * 4 + [PAYOFF[s][a][b] for s in (1, 2) for a, b in pairs]
    reward, following = torch.tensor(payoff), torch.where(state == 0, 1 + action[:, 0], 0)
    discount = targets.discount(GAMMA, state > 0)
    agents = nn.Embedding(3, 4)  # state -> the values of two agents' two actions
    # Agents that begin in the wrong order can get stuck: no weight may turn their order round.
    nn.init.normal_(agents.weight, std=0.01)
    mixer = mixers.QMix(2, 3, hidden=8)
    features = torch.eye(3)

    def joint(state: Tensor, action: Tensor) -> Tensor:
        own = qmix.chosen(agents(state).view(-1, 2, 2), action)
        return mixers.vdn(own) if kind == "vdn" else mixer(own, features[state])

    optimizer = torch.optim.Adam([*agents.parameters(), *mixer.parameters()], lr=0.03)
    schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.01, 600)
    for _ in range(600):
        with torch.no_grad():
            best = qmix.greedy(agents(following).view(-1, 2, 2))
            target = targets.bootstrap(reward, discount, joint(following, best))
        loss, _ = qmix.joint_loss(joint(state, action), target)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
    values = joint(state, action).detach()
    return values[:4].view(2, 2), values[8:].view(2, 2)


def test_vdn_cannot_represent_the_two_step_game_and_takes_the_safe_branch() -> None:
    first, second = learn("vdn")
    # The nearest sum of two rows of values, by least squares: its worst error is 1.5.
    rows = [[a == 0, a == 1, b == 0, b == 1] for a in (0, 1) for b in (0, 1)]
    game = np.array(PAYOFF[2]).ravel()
    design = np.array(rows, float)
    nearest = design @ np.linalg.lstsq(design, game, rcond=None)[0]
    assert np.abs(nearest - game).max() == pytest.approx(1.5)
    assert second.flatten().tolist() == pytest.approx(nearest.tolist(), abs=0.1)
    assert first[0].max() > first[1].max()  # to the sure 7; the 8 looks like 6.5


def test_qmix_represents_it_and_takes_the_better_branch() -> None:
    first, second = learn("qmix")
    assert second.flatten().tolist() == pytest.approx([0, 1, 1, 8], abs=0.05)
    assert first[1].max() > first[0].max()
    assert first[1].max().item() == pytest.approx(GAMMA * 8, abs=0.1)
    assert first[0].max().item() == pytest.approx(GAMMA * 7, abs=0.1)


def test_the_joint_loss_counts_valid_samples() -> None:
    joint, target = [1.0, math.nan, 4.0], [2.0, 1.0, 1.0]
    valid = torch.tensor([True, False, True])
    q = torch.tensor(joint, requires_grad=True)
    loss, terms = qmix.joint_loss(q, torch.tensor(target), valid=valid)
    loss.backward()
    assert loss.item() == pytest.approx((1 + 9) / 2)
    assert terms["td_error"].item() == 2.0
    assert terms["q"].item() == 2.5
    assert q.grad.tolist() == pytest.approx([-1.0, 0.0, 3.0])  # type: ignore[union-attr]
    none = qmix.joint_loss(q, torch.tensor(target), valid=valid & ~valid)[0]
    assert none.item() == 0.0


def test_gradients_agree_with_finite_differences() -> None:
    torch.manual_seed(0)
    mixer = mixers.QMix(N, S, hidden=4).double()
    q = torch.randn(M, N, dtype=torch.float64, requires_grad=True)
    state = torch.randn(M, S, dtype=torch.float64, requires_grad=True)
    target = torch.randn(M, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(
        lambda q, s: qmix.joint_loss(mixer(q, s), target)[0], (q, state)
    )
    qmix.joint_loss(mixer(q, state), target)[0].backward()
    assert target.grad is None


def test_greedy_among_the_legal() -> None:
    q = torch.tensor([[[3.0, 2.0, 1.0], [0.0, -1.0, -2.0]]])
    legal = torch.tensor([[[False, False, True], [False, False, False]]])
    assert qmix.greedy(q, legal).tolist() == [[2, 0]]
    assert qmix.chosen(q, torch.tensor([[2, 1]])).tolist() == [[1.0, -1.0]]


def test_nonsense_is_refused() -> None:
    mixer, q, state = mixers.QMix(N, S), torch.zeros(M, N), torch.zeros(M, S)
    with pytest.raises(ValueError, match="num_agents, state_size, hidden: expected positive"):
        mixers.QMix(0, S)
    with pytest.raises(ValueError, match=r"q: expected shape \(5, 3\), got \(5, 2\)"):
        mixer(q[:, :2], state)
    with pytest.raises(ValueError, match=r"state: expected shape \(5, 6\), got \(1, 6\)"):
        mixer(q, state[:1])
    with pytest.raises(ValueError, match=r"q: expected \[M, N\], not empty"):
        mixers.vdn(q[0])
    with pytest.raises(ValueError, match=r"action: expected shape \(5, 3\), got \(5,\)"):
        qmix.chosen(torch.zeros(M, N, A), q[:, 0])
    with pytest.raises(ValueError, match=r"legal: expected shape \(5, 3, 4\), got \(5, 3\)"):
        qmix.greedy(torch.zeros(M, N, A), q.bool())
    with pytest.raises(ValueError, match=r"target: expected shape \(5,\), got \(5, 3\)"):
        qmix.joint_loss(q[:, 0], q)
    with pytest.raises(ValueError, match=r"valid: expected bool \(5,\), got torch.bool \(1,\)"):
        qmix.joint_loss(q[:, 0], q[:, 0], valid=torch.ones(1, dtype=torch.bool))
