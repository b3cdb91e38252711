"""Adam without torch's compiler: the same numbers, and nothing imported."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest
import torch
from torch import nn

from bray_trainer.adam import UncompiledAdam

IMPORTS = """
import sys
import torch
from bray_trainer.adam import UncompiledAdam

{before}
module = torch.nn.Linear(3, 2)
optimizer = UncompiledAdam(module.parameters(), lr=0.1, fused=True)
for _ in range(2):
    optimizer.zero_grad(set_to_none=True)
    module(torch.ones(4, 3)).sum().backward()
    optimizer.step()
optimizer.load_state_dict(optimizer.state_dict())
print("torch._dynamo" in sys.modules)
"""


def trained(kind: type[torch.optim.Adam], **settings: Any) -> dict[str, Any]:
    torch.manual_seed(3)
    module = nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 2))
    optimizer = kind(module.parameters(), lr=0.01, **settings)
    optimizer.add_param_group({"params": [nn.Parameter(torch.ones(2))], "lr": 0.1})
    found = []
    optimizer.register_step_post_hook(lambda *_: found.append(1))
    for _ in range(5):
        optimizer.zero_grad(set_to_none=True)
        module(torch.randn(16, 3)).square().mean().backward()
        optimizer.step()
    assert len(found) == 5
    again = kind(module.parameters(), lr=0.5, **settings)
    again.add_param_group({"params": [nn.Parameter(torch.ones(2))]})
    again.load_state_dict(optimizer.state_dict())
    return {"weights": module.state_dict(), "state": again.state_dict()}


@pytest.mark.parametrize("settings", [{}, {"fused": True}, {"foreach": True, "amsgrad": True}])
@pytest.mark.parametrize("has_compiler", [False, True])
def test_it_is_torchs_adam_to_the_last_bit(
    settings: dict[str, Any], has_compiler: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    want = trained(torch.optim.Adam, **settings)  # which imports the compiler
    if not has_compiler:
        monkeypatch.setattr("bray_trainer.adam._COMPILER", "not.imported")
    got = trained(UncompiledAdam, **settings)
    for name, tensor in want["weights"].items():
        assert torch.equal(tensor, got["weights"][name]), name
    assert want["state"]["param_groups"] == got["state"]["param_groups"]
    for number, state in want["state"]["state"].items():
        for name, tensor in state.items():
            assert torch.equal(tensor, got["state"]["state"][number][name]), name


def test_a_closure_is_evaluated_with_gradients() -> None:
    weight = nn.Parameter(torch.ones(2))
    optimizer = UncompiledAdam([weight], lr=0.1)

    def closure() -> Any:
        optimizer.zero_grad()
        loss = weight.square().sum()
        loss.backward()
        return loss.detach()

    assert float(optimizer.step(closure)) == 2.0
    assert (weight < 1).all()


def imports_the_compiler(before: str = "") -> bool:
    words = [sys.executable, "-c", IMPORTS.format(before=before)]
    done = subprocess.run(words, capture_output=True, text=True, check=True)
    return done.stdout.strip() == "True"


@pytest.mark.long
def test_the_compiler_is_not_imported() -> None:
    """If an update of torch fails this, training still works, and starts a second later."""
    assert not imports_the_compiler()


@pytest.mark.long
def test_methods_without_marks_are_called_as_they_are() -> None:
    """What an update of torch may do; here torch's own methods lose what is unwrapped."""
    hidden = (
        "for name in ('step', 'add_param_group', 'zero_grad', 'state_dict', 'load_state_dict'):"
    )
    hidden += "\n    vars(getattr(torch.optim.Adam, name)).pop('__wrapped__')"
    assert imports_the_compiler(hidden)
