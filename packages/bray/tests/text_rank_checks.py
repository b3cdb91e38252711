"""One of several ranks that train tokens together, for `test_text_ranks.py`."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import token_models
import torch

from bray_core.process.quick_exit import end_process
from bray_trainer.distributed.ranks import Ranks
from bray_trainer.distributed.sharding import whole

GROUPS = {"uneven": [[0], [1, 2]], "one has none": [[2], [0, 1]]}
"""Groups of each rank; those of the last have equal rewards, which teach nothing."""


def step(variant: dict[str, Any], groups: list[int], model: str = "sum") -> list[float]:
    """Return the parameters after one step of plain gradient descent on some groups."""
    made: Any = token_models.SumOfTokens if model == "sum" else token_models.llama
    module = made()
    replay = [one for one in token_models.samples(made()) if one.group in groups]
    trainer = token_models.trainer(module, replay, microbatches=2, **variant)
    trainer.optimizer = torch.optim.SGD(module.parameters(), lr=1.0)
    trainer._stepper.optimizers = {"": trainer.optimizer}
    trainer.set_rate = lambda *given: None  # type: ignore[method-assign]
    trainer.run(1)
    found = whole(dict(module.named_parameters()))
    values: list[float] = torch.cat([one.detach().flatten() for one in found.values()]).tolist()
    return values


def main(cases: list[tuple[dict[str, Any], str, str]]) -> None:
    """Print what this rank has after a step of each case."""
    ranks = Ranks.from_environment("gloo", timeout_s=60)
    print(json.dumps([step(one, GROUPS[name][ranks.rank], m) for one, name, m in cases]))
    ranks.close()


if __name__ == "__main__":
    main(json.loads(Path(sys.argv[1]).read_text()))
    # As the command ends: Python's own end took down a thread of gloo's once, `terminate called`.
    sys.exit(end_process(0))
