"""Folders of language models: where a trial has one, written whole or not at all, copied.

The files are those of `save_pretrained` of transformers: safetensors, config, tokenizer, chat
template and generation config. transformers and vLLM open them.
"""

from __future__ import annotations

import shutil
from pathlib import Path

from bray_core.errors import AlreadyExistsError
from bray_core.files.saved_folder import saved_folder

CONFIG = "config.json"
FOLDER_OF_A_TRIAL = "huggingface"
_WEIGHTS = "*.safetensors"
_IN_A_TRIAL = f"models/*/{FOLDER_OF_A_TRIAL}/{CONFIG}"


def find_language_model(path: Path) -> Path | None:
    """Return the folder of a language model that a path stands for.

    Args:
        path: The folder itself, or a trial: its newest language model.

    Returns:
        The folder; None: the path holds something else.
    """
    if is_language_model(path):
        return path
    return max(language_models_of(path).values(), key=_age, default=None)


def _age(folder: Path) -> tuple[int, Path]:
    return (folder / CONFIG).stat().st_mtime_ns, folder


def is_language_model(folder: Path) -> bool:
    """Return whether a folder holds a language model."""
    return (folder / CONFIG).is_file() and any(folder.glob(_WEIGHTS))


def language_models_of(trial: Path) -> dict[str, Path]:
    """Return the folders of a trial's language models, by the models' names."""
    return {config.parents[1].name: config.parent for config in sorted(trial.glob(_IN_A_TRIAL))}


def model_name(folder: Path) -> str:
    """Return what the model in a folder is called: in a trial, as the trial calls it."""
    folder = folder.resolve()
    return folder.parent.name if folder.name == FOLDER_OF_A_TRIAL else folder.name


def copy_language_model(folder: Path, target: Path) -> None:
    """Copy a folder of a language model, without what else lies in it.

    Raises:
        AlreadyExistsError: There is something at `target`.
    """
    if target.exists():
        raise AlreadyExistsError(f"{target}: exists already: name a folder that does not")
    with saved_folder(target) as new:
        for file in sorted(folder.iterdir()):
            if file.is_file() and not file.name.startswith("."):
                shutil.copyfile(file, new / file.name)
