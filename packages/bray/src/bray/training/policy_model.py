"""The model that a run's workers ask for actions."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from torch import nn

from bray.policies.export_check import warn_of_export
from bray.run import Run
from bray.sources.config import ActorConfig, ServingActorConfig
from bray_model import ModelConfig

if TYPE_CHECKING:
    from bray.components import AnyModel


def policy_model(
    run: Run,
    module: nn.Module,
    example: Any,
    batching: ModelConfig,
    actor: ActorConfig,
    *,
    name: str = "policy",
) -> AnyModel:
    """Make the model of a policy, its rows computed where the settings place them.

    Args:
        run: what makes the components.
        module: the policy that acts.
        example: inputs of the module.
        batching: how the rows of one worker are batched; inference workers on Ray batch those of
            all workers.
        actor: the workers, and where their rows are computed: by themselves, if it does not say.
        name: name of the model.
    """
    if not isinstance(actor, ServingActorConfig):
        return run.model(name, module, example, batching)
    if actor.placement != "caller" and not run.is_local:  # the rows of all workers meet
        rows = batching.max_batch_size * actor.num_workers
        batching = replace(batching, max_batch_size=rows, pad_to=())
    model = run.model(
        name,
        module,
        example,
        batching,
        placement=actor.placement,
        num_workers=actor.inference_workers,
    )
    if model.version == 0:  # else it has been told
        warn_of_export(module, example, name)
    return model
