"""Adam on one flat tensor, beside torch's own."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor, nn
from torch.optim import Adam

from bray_trainer.flat_adam import FlatAdam, can_join


def made(seed: int = 0) -> nn.Sequential:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(5, 8), nn.Tanh(), nn.Linear(8, 3))


def loss(module: nn.Module, step: int, rows: int = 16) -> Tensor:
    x = torch.randn(rows, 5, generator=torch.Generator().manual_seed(step))
    return (module(x) - x[:, :3].sin()).square().mean()


def step(module: nn.Module, optimizer: Adam, number: int, max_norm: float | None = 0.1) -> None:
    optimizer.zero_grad(set_to_none=True)
    loss(module, number).backward()
    if isinstance(optimizer, FlatAdam) and max_norm:
        optimizer.clip_gradient(max_norm)
    elif max_norm:
        nn.utils.clip_grad_norm_(module.parameters(), max_norm)
    optimizer.step()


def pair() -> tuple[nn.Module, FlatAdam, nn.Module, Adam]:
    """Return two modules of the same weights with the two kinds of Adam."""
    ours, theirs = made(), made()
    flat = FlatAdam(ours.parameters(), lr=1e-2, eps=1e-5)
    return ours, flat, theirs, Adam(theirs.parameters(), lr=1e-2, eps=1e-5, fused=True)


def assert_alike(ours: nn.Module, theirs: nn.Module) -> None:
    torch.testing.assert_close(ours.state_dict(), theirs.state_dict(), rtol=1e-5, atol=1e-6)


def test_steps_are_those_of_torch() -> None:
    ours, flat, theirs, plain = pair()
    for number in range(40):
        step(ours, flat, number)
        step(theirs, plain, number)
    assert flat.flat is not None
    assert_alike(ours, theirs)


def test_clipping_returns_the_norm_and_leaves_the_gradients_to_be_read() -> None:
    ours, flat, theirs, _ = pair()
    loss(ours, 0).backward()
    loss(theirs, 0).backward()
    norm = flat.clip_gradient(0.01)
    wanted = nn.utils.clip_grad_norm_(theirs.parameters(), 0.01)
    torch.testing.assert_close(norm, wanted)
    for one, other in zip(ours.parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(one.grad, other.grad)


def test_the_state_is_that_of_torch_and_loads_either_way() -> None:
    ours, flat, theirs, plain = pair()
    for number in range(3):
        step(ours, flat, number)
        step(theirs, plain, number)
    saved, wanted = copy.deepcopy(flat.state_dict()), copy.deepcopy(plain.state_dict())
    assert saved["state"].keys() == wanted["state"].keys()
    assert saved["param_groups"] == wanted["param_groups"]
    torch.testing.assert_close(saved["state"], wanted["state"], rtol=1e-5, atol=1e-6)
    flat.load_state_dict(wanted)
    plain.load_state_dict(saved)
    for number in range(3, 6):
        step(ours, flat, number)
        step(theirs, plain, number)
    assert_alike(ours, theirs)
    assert {float(state["step"]) for state in flat.state.values()} == {6.0}


def test_state_that_was_cleared_begins_anew() -> None:
    ours, flat, theirs, plain = pair()
    for number in range(4):
        if number == 2:
            flat.state.clear()
            plain.state.clear()
        step(ours, flat, number)
        step(theirs, plain, number)
    assert_alike(ours, theirs)


def test_a_parameter_without_a_gradient_is_left_alone_as_torch_does() -> None:
    ours, flat, theirs, plain = pair()
    for number in range(6):
        for module, optimizer in ((ours, flat), (theirs, plain)):
            optimizer.zero_grad(set_to_none=True)
            loss(module, number).backward()
            if number in (2, 3):
                next(module.parameters()).grad = None
            optimizer.step()
    assert_alike(ours, theirs)
    steps = [float(state["step"]) for state in flat.state.values()]
    assert steps == [float(state["step"]) for state in plain.state.values()] == [4.0, 6.0, 6.0, 6.0]


def test_parameters_moved_elsewhere_are_still_trained() -> None:
    ours, flat, theirs, plain = pair()
    for number in range(4):
        if number == 2:
            weight = next(ours.parameters())
            weight.data = weight.data.clone()
            assert flat.flat is None
        step(ours, flat, number, None)
        step(theirs, plain, number, None)
    assert flat.clip_gradient(1.0) is None
    assert_alike(ours, theirs)


def test_another_group_and_other_settings_are_those_of_torch() -> None:
    ours, flat, theirs, plain = pair()
    more = [nn.Parameter(torch.ones(2)) for _ in range(2)]
    for parameter, optimizer in zip(more, (flat, plain), strict=True):
        optimizer.param_groups[0]["weight_decay"] = 0.1
        optimizer.param_groups[0]["lr"] = 0.02
        step(ours, flat, 0) if optimizer is flat else step(theirs, plain, 0)
        optimizer.add_param_group({"params": [parameter], "lr": 0.5})
        parameter.grad = torch.ones(2)
        optimizer.step()
    assert_alike(ours, theirs)
    torch.testing.assert_close(more[0], more[1])


def test_what_can_be_joined() -> None:
    assert can_join(list(made().parameters()))
    assert not can_join([])
    assert not can_join(list(made().double().parameters()))
    assert not can_join([nn.Parameter(torch.zeros(2**20 + 1))])
    assert not can_join([nn.Parameter(torch.zeros(4, 3).t())])
    assert not can_join([nn.Parameter(torch.zeros(3), requires_grad=False)])
    first = nn.Parameter(torch.zeros(4))
    assert not can_join([first, nn.Parameter(first.data)])


def test_a_copy_of_a_joined_module_is_its_own() -> None:
    module = made()
    flat = FlatAdam(module.parameters(), lr=1e-2)
    other = copy.deepcopy(module)
    before = copy.deepcopy(other.state_dict())
    step(module, flat, 0)
    torch.testing.assert_close(other.state_dict(), before, rtol=0, atol=0)
    assert not torch.equal(next(module.parameters()), next(other.parameters()))


@pytest.mark.parametrize("seed", [0, 1])
def test_the_same_gradients_give_the_same_bits(seed: int) -> None:
    weights = []
    for _ in range(2):
        module = made(seed)
        optimizer = FlatAdam(module.parameters(), lr=1e-2)
        for number in range(5):
            step(module, optimizer, number)
        weights.append([parameter.detach().clone() for parameter in module.parameters()])
    assert all(torch.equal(*both) for both in zip(*weights, strict=True))


def test_hooks_of_a_step_are_called() -> None:
    module = made()
    flat = FlatAdam(module.parameters(), lr=1e-2)
    seen: list[str] = []
    handles = [
        flat.register_step_pre_hook(lambda *_: seen.append("before")),
        flat.register_step_post_hook(lambda *_: seen.append("after")),
    ]
    step(module, flat, 0)
    assert seen == ["before", "after"]
    for handle in handles:
        handle.remove()
    step(module, flat, 1)
    assert len(seen) == 2
