"""Which policy a `load` means: that of a trial of several is found by the model's name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from bray.games.exported_opponents import exported_config
from bray.templates.composition import AgentPart
from bray_actor import PolicyConfig
from bray_actor.environments.spec import located_code
from bray_core.errors import ConfigError
from bray_core.spaces import Spaces
from bray_model.export.export_folder import find_export, find_exports


def player_of(part: AgentPart) -> str:
    """Return what plays an agent that never learns: its script, or the folder of its policy.

    Args:
        part: the agent; its model is found by its name in a trial of several policies.

    Raises:
        ConfigError: the trial has several policies, and none of the model's name.
        NotFoundError: there is no export.
    """
    if part.play is not None or part.load is None:
        return located_code(part.play or "")
    found = find_exports(Path(part.load))
    if len(found) == 1:
        return str(found[0])
    by_name = {export.parents[1].name: export for export in found}
    if (own := by_name.get(part.model or "")) is None:
        raise ConfigError(
            f"models.{part.model}.load: {part.load} has policies of several names: expected one of "
            f"{', '.join(sorted(by_name))} as the model's name, got {part.model!r}: rename the "
            "model, or give the folder of one export"
        )
    return str(own)


def export_among(folder: Path, models: Sequence[str]) -> Path:
    """Return the export of a trial of several policies that plays as some models do.

    Args:
        folder: folder of a trial or an export.
        models: names of the models whose sides it shall play.

    Returns:
        The export of the first of these names; the folder itself where there is none, or but one.

    Raises:
        NotFoundError: there is no export.
    """
    found = find_exports(folder)
    by_name = {export.parents[1].name: export for export in found}
    own = next((by_name[model] for model in models if model in by_name), None)
    return folder if len(found) < 2 or own is None else own


def loaded_spaces(part: AgentPart) -> Mapping[str, Any] | None:
    """Return what an agent's policy that was trained before sees and may do; None: it tells
    nothing, or is none.

    Args:
        part: the agent.
    """
    if part.load is None:
        return None
    return exported_config(find_export(Path(player_of(part)))).spaces


def check_loaded(part: AgentPart, config: PolicyConfig, played: str, spaces: Spaces) -> None:
    """Refuse a policy that was trained on something else.

    Args:
        part: the agent that it answers for.
        config: how it acts, with its spaces.
        played: what it would play, in words.
        spaces: what that shows and takes.

    Raises:
        ConfigError: says in what they differ.
    """
    if part.load is None or config.spaces is None:
        return
    told = Spaces.parse(f"models.{part.model}.load", config.spaces)
    if (difference := told.difference(spaces)) is not None:
        raise ConfigError(
            f"models.{part.model}.load: expected a policy that sees and may do what {played} "
            f"shows and takes: {difference}"
        )
