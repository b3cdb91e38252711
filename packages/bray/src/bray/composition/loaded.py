"""Which policy a `load` means: that of a trial of several is found by the model's name."""

from __future__ import annotations

from pathlib import Path

from bray.templates.composition import AgentPart
from bray_core.errors import ConfigError
from bray_model.export.export_folder import find_exports


def player_of(part: AgentPart) -> str:
    """Return what plays an agent that never learns: its script, or the folder of its policy.

    Args:
        part: the agent; its model is found by its name in a trial of several policies.

    Raises:
        ConfigError: the trial has several policies, and none of the model's name.
        NotFoundError: there is no export.
    """
    if part.play is not None or part.load is None:
        return part.play or ""
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
