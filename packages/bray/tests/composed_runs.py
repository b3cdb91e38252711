"""Runs of the templates in examples/, for the tests: trained here, and what is left of them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import torch

import bray
from bray.composition.exports import export_all
from bray.composition.train import train_composition
from bray.composition.whole_run import completed_goal
from bray.goal import Outcome
from bray.templates.loading import load

EXAMPLES = Path(__file__).parents[3] / "examples"


def train(
    path: Path,
    folder: Path,
    *overrides: str,
    exports: bool = True,
    look: Callable[[bray.Run], Any] | None = None,
    runtime: Literal["local", "ray"] = "local",
) -> Outcome:
    """Train a template as `bray train` does; return how it ended.

    Args:
        path: Path of the template.
        folder: Folder of the trial.
        overrides: Settings in place of the template's.
        exports: Whether its policies are exported in the end.
        look: Called with the run when it has been trained.
        runtime: Where it is trained.
    """
    torch.set_num_threads(1)
    template = load(str(path), overrides)
    composition = template.composition
    assert composition is not None
    config = template.to_mapping()
    with bray.init(folder.parent, folder.name, runtime, config=config) as run:
        outcome = train_composition(run, composition, completed_goal(template))
        if exports:
            export_all(run, composition)
        if look is not None:
            look(run)
    return outcome
