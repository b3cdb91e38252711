"""Where the language model lies that a path stands for, without opening it."""

from __future__ import annotations

from pathlib import Path

from bray_core.errors import NotFoundError
from bray_model.text.text_folder import is_language_model, language_models_of


def find_text_folder(path: Path, name: str | None = None) -> Path | None:
    """Return the folder of a language model; None: the path holds something else.

    Args:
        path: Folder as `save_pretrained` of transformers writes it, or a trial of a run that
            trained a language model.
        name: Which of a trial's several models.

    Raises:
        NotFoundError: The trial has several, and none of this name.
    """
    if is_language_model(path):
        return path
    found = language_models_of(path)
    if len(found) < 2:
        return next(iter(found.values()), None)
    if name not in found:
        raise NotFoundError(
            f"{path}: has several language models, {', '.join(found)}: choose one with --model, "
            f"got {name}"
        )
    return found[name]
