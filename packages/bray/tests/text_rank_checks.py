"""One of several ranks that train tokens together, for `test_text_ranks.py`."""

from __future__ import annotations

import json
import sys

import token_models
import torch

from bray_trainer.distributed.ranks import Ranks


def step(variant: dict[str, object], share: slice) -> list[float]:
    """Return the parameters after one step of plain gradient descent on a share of the groups."""
    module = token_models.SumOfTokens()
    replay = [one for one in token_models.samples(module) if one.group in range(3)[share]]
    trainer = token_models.trainer(module, replay, microbatches=2, **variant)
    trainer.optimizer = torch.optim.SGD(module.parameters(), lr=1.0)
    trainer._stepper.optimizers = {"": trainer.optimizer}
    trainer.set_rate = lambda *given: None  # type: ignore[method-assign]
    trainer.run(1)
    found: list[float] = torch.nn.utils.parameters_to_vector(module.parameters()).tolist()
    return found


if __name__ == "__main__":
    ranks = Ranks.from_environment("gloo", timeout_s=60)
    share = slice(0, 1) if ranks.rank == 0 else slice(1, 3)
    print(json.dumps([step(one, share) for one in json.loads(sys.argv[1])]))
    ranks.close()
