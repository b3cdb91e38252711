"""What plays the source of a language model: prompts, conversations, or programs at an endpoint."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from bray.text.config import SamplingConfig, TextSourceConfig
from bray.text.endpoint_rounds import EndpointRounds
from bray.text.rounds import Rounds
from bray.text.sampling import AnswerSampler
from bray.text.task_loading import make_rounds
from bray_core.errors import ConfigError
from bray_model.text.text_model import TextModel


def make_players(
    model: TextModel,
    agent: SamplingConfig,
    source: TextSourceConfig,
    task: Any,
    *,
    logs: Path,
    seed: int,
) -> tuple[Rounds, Rounds | None]:
    """Return what plays in training, and what plays evaluations; None: nothing can.

    Args:
        model: what samples.
        agent: how.
        source: what is played.
        task: what `load_task` returned; None: programs alone know it.
        logs: folder of what programs print.
        seed: seed of the programs.
    """
    held_out = None if task is None else make_rounds(source, task, AnswerSampler(model, agent))
    if source.program is not None or source.external:
        plays = EndpointRounds(model, source, held_out=held_out, logs=logs, seed=seed)
        return plays, held_out
    assert held_out is not None, "the settings say what plays"
    return held_out, held_out


def check_samplers(source: TextSourceConfig, num_workers: int) -> None:
    """Refuse programs that so many samplers cannot share.

    Raises:
        ConfigError: names the setting.
    """
    if num_workers > 1 and (source.external or (source.program is not None and source.port)):
        raise ConfigError(
            "actor.num_workers: expected 1 for external programs and for a port, which one sampler "
            f"has, got {num_workers}"
        )
    if source.program is not None and source.count % num_workers:
        raise ConfigError(
            f"actor.num_workers: expected a divisor of source.count={source.count}, got "
            f"{num_workers}"
        )
