"""What people write about a trial: tags and a note, kept as `notes.json` in its folder."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from bray_core.errors import AlreadyExistsError, BrayError, CodecError, ConfigError
from bray_core.files.json_file import read_object
from bray_core.files.regular_file import Opener, open_regular
from bray_core.files.saved_file import write_atomic

NOTES = "notes.json"
MAX_TAGS = 20
MAX_TEXT = 10_000
"""Greatest length of a note, in characters."""
_TAG = re.compile(r"[^\s,](?:[^\n\r\t,]{0,38}[^\s,])?")
_MAX_BYTES = 128 * 1024
_WRITING = threading.Lock()


@dataclass(frozen=True, kw_only=True, slots=True)
class TrialNotes:
    """The tags and the note of a trial.

    Raises:
        ConfigError: a tag is empty, too long or holds a comma, or there is too much of something.
    """

    tags: tuple[str, ...] = ()
    """Words that trials are found by, each once, in the order in which they were added."""
    text: str = ""
    """What somebody wants to remember of the trial."""

    def __post_init__(self) -> None:
        for tag in self.tags:
            if not isinstance(tag, str) or not _TAG.fullmatch(tag) or not tag.isprintable():
                raise ConfigError(
                    f"tags: expected 1 to 40 characters without commas and line breaks, got {tag!r}"
                )
        if len(self.tags) > MAX_TAGS or len(set(self.tags)) < len(self.tags):
            raise ConfigError(
                f"tags: expected {MAX_TAGS} different ones at most, got {len(self.tags)}"
            )
        if not isinstance(self.text, str) or len(self.text) > MAX_TEXT:
            raise ConfigError(f"text: expected a text of {MAX_TEXT} characters at most")
        try:
            self.text.encode()
        except UnicodeEncodeError as error:
            raise ConfigError(f"text: expected UTF-8, got {error.reason}") from error

    @classmethod
    def of(cls, tags: Iterable[object], text: object) -> TrialNotes:
        """Return notes of values of any type, such as those of JSON.

        Raises:
            ConfigError: see the class.
        """
        return cls(tags=tuple(tags), text=text)  # type: ignore[arg-type]  # checked there

    @classmethod
    def read(cls, trial: Path, opener: Opener = open_regular) -> TrialNotes:
        """Return the notes of a trial, empty where it has none.

        Raises:
            CodecError: the file holds something else.
        """
        path = trial / NOTES
        found = read_object(path, opener, _MAX_BYTES) or {}
        tags = found.get("tags", [])
        try:
            return cls.of(tags if isinstance(tags, list) else [tags], found.get("text", ""))
        except ConfigError as error:
            raise CodecError(f"{path}: no notes of a trial: {error}") from error

    def write(self, trial: Path, before: TrialNotes | None = None) -> None:
        """Write the notes of a trial, whole or not at all; empty ones remove the file.

        Args:
            trial: Folder of the trial.
            before: Notes that these take the place of; None: whatever is there.

        Raises:
            AlreadyExistsError: The trial has other notes than `before` by now.
            BrayError: The folder cannot be written.
        """
        path = trial / NOTES
        with _WRITING:  # two pages that save at once: the second sees what the first one wrote
            if before is not None and TrialNotes.read(trial) != before:
                raise AlreadyExistsError(
                    f"notes: those of {trial.name} were changed meanwhile: look at them, then save"
                )
            try:
                if self == TrialNotes():
                    path.unlink(missing_ok=True)
                else:
                    write_atomic(path, json.dumps(self.document(), indent=1).encode())
            except OSError as error:
                raise BrayError(f"notes: cannot write {path}: {error.strerror}") from error

    def document(self) -> Mapping[str, object]:
        """Return the notes as JSON has them."""
        return {"tags": list(self.tags), "text": self.text}
