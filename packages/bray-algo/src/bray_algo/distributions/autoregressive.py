"""Several choices of which later ones depend on earlier ones, and reals that depend on all.

A policy's outputs are those of independent ones (`outputs`), with `conditional [..., S, S + D]`
beside them, S = ΣA_k values of all choices, D reals. Its row of a value that was chosen is added to
the logits of the choices that come later, which lie side by side in the columns, and to the means
of the reals; it is 0 for those that came before, so that no order is needed to add it up:

    logits_k(a) = logits_k + Σ_j conditional[row of a_j, columns of k]

The probability of an action is that of independent choices with these logits. Vinyals et al. 2019,
"Grandmaster level in StarCraft II", Methods, have networks in place of the tables.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from itertools import accumulate, product
from typing import Any

import torch
from torch import Tensor

MAX_JOINT = 256
"""Combinations of choices up to which the entropy is exact; it is a mean over all of them."""


def is_autoregressive(outputs: Mapping[str, Any]) -> bool:
    """Return whether later choices depend on earlier ones."""
    return "conditional" in outputs


def given(outputs: Mapping[str, Any], choices: Tensor) -> dict[str, Any]:
    """Return the outputs of independent choices that give this action its probability.

    Args:
        outputs: a policy's outputs, with `conditional`.
        choices: what was chosen, integers `[…, K]`.
    """
    return _shifted(outputs, sum(_row(outputs, k, choices[..., k]) for k in _parts(outputs)))


def every_choice(outputs: Mapping[str, Any]) -> tuple[Tensor, dict[str, Any]] | None:
    """Return all combinations `[J, K]`, and `given` of each, with J as the last leading axis.

    None, if there are more than `MAX_JOINT`.
    """
    sizes = [logits.shape[-1] for logits in outputs["logits"]]
    if math.prod(sizes) > MAX_JOINT:
        return None
    combinations = list(product(*map(range, sizes)))
    choices = torch.tensor(combinations, device=outputs["logits"][0].device)  # [J, K]
    wide = {
        name: [leaf.unsqueeze(-2) for leaf in outputs[name]]
        if name == "logits"
        else outputs[name].unsqueeze(-2)
        for name in ("logits", "mean", "log_std", "low", "high")
        if name in outputs
    }
    starts = _starts(outputs)
    shift = sum(outputs["conditional"][..., starts[k] + choices[:, k], :] for k in _parts(outputs))
    return choices, _shifted(wide, shift)


def mode(outputs: Mapping[str, Any]) -> tuple[Tensor, dict[str, Any]]:
    """Return the likeliest value of each choice given those before, `[…, K]`, and `given` it.

    The likeliest whole action may be another one; to find it takes a search.
    """
    logits = outputs["logits"]
    order = outputs["order"].reshape(-1, len(logits))[0].long().tolist()
    shift = torch.zeros_like(outputs["conditional"][..., 0, :])
    made: dict[int, Tensor] = {}
    for k in order:
        made[k] = _shifted(outputs, shift)["logits"][k].argmax(-1)
        shift = shift + _row(outputs, k, made[k])
    return torch.stack([made[k] for k in _parts(outputs)], -1), _shifted(outputs, shift)


def _parts(outputs: Mapping[str, Any]) -> range:
    return range(len(outputs["logits"]))


def _starts(outputs: Mapping[str, Any]) -> list[int]:
    return list(accumulate((logits.shape[-1] for logits in outputs["logits"]), initial=0))


def _row(outputs: Mapping[str, Any], k: int, choice: Tensor) -> Tensor:
    """Return what choices `[…]` of the k-th part add to all numbers, `[…, S + D]`."""
    conditional: Tensor = outputs["conditional"]
    # A choice that does not exist is refused where its log probability is taken.
    held = choice.long().clamp(0, outputs["logits"][k].shape[-1] - 1)
    index = (_starts(outputs)[k] + held)[..., None, None]
    rows = conditional.gather(-2, index.expand(*held.shape, 1, conditional.shape[-1]))
    return rows.squeeze(-2)


def _shifted(outputs: Mapping[str, Any], shift: Any) -> dict[str, Any]:
    """Return the outputs with numbers `[…, S + D]` added to logits and means."""
    starts = _starts(outputs)
    made = {**outputs}
    made["logits"] = [
        logits + shift[..., starts[k] : starts[k + 1]] for k, logits in enumerate(outputs["logits"])
    ]
    if "mean" in outputs:
        made["mean"] = outputs["mean"] + shift[..., starts[-1] :]
        for name in ("log_std", "low", "high"):
            if name in outputs:
                made[name] = outputs[name].expand_as(made["mean"])
    return made
