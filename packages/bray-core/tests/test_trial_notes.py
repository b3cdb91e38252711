"""Tags and a note of a trial: written whole, read with care."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from bray_core.errors import AlreadyExistsError, CodecError, ConfigError
from bray_core.trials.experiment import Experiment
from bray_core.trials.trial import Trial, clone
from bray_core.trials.trial_notes import NOTES, TrialNotes


def test_notes_are_kept_and_empty_ones_leave_no_file(tmp_path: Path) -> None:
    assert TrialNotes.read(tmp_path) == TrialNotes()
    notes = TrialNotes(tags=("to repeat", "最佳"), text="Seed 3 is\nthe odd one.")
    notes.write(tmp_path)
    assert TrialNotes.read(tmp_path) == notes
    TrialNotes().write(tmp_path, before=notes)
    assert not (tmp_path / NOTES).exists()


def test_what_somebody_else_wrote_meanwhile_is_not_overwritten(tmp_path: Path) -> None:
    TrialNotes(text="theirs").write(tmp_path, before=TrialNotes())
    with pytest.raises(AlreadyExistsError, match="were changed meanwhile"):
        TrialNotes(text="mine").write(tmp_path, before=TrialNotes())
    assert TrialNotes.read(tmp_path).text == "theirs"


@pytest.mark.parametrize(
    "tags", [[""], ["a,b"], ["a\nb"], [" a"], ["x" * 41], [1], [None], ["a", "a"], ["\u202ea"]]
)
def test_tags_that_are_none_are_refused(tags: list[object]) -> None:
    with pytest.raises(ConfigError, match="tags: expected"):
        TrialNotes.of(tags, "")


@pytest.mark.parametrize("text", [None, 3, "x" * 10_001, "\ud800"])
def test_texts_that_are_none_are_refused(text: object) -> None:
    with pytest.raises(ConfigError, match="text: expected"):
        TrialNotes.of([], text)


@pytest.mark.parametrize("content", ['{"tags": "a,b"}', "[]", '{"text": 1}', "{", '{"tags": [[]]}'])
def test_a_damaged_file_is_told(tmp_path: Path, content: str) -> None:
    (tmp_path / NOTES).write_text(content)
    with pytest.raises(CodecError, match=NOTES):
        TrialNotes.read(tmp_path)


def test_a_link_in_the_place_of_the_file_is_replaced_not_followed(tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere.json"
    elsewhere.write_text(json.dumps({"tags": [], "text": "untouched"}))
    trial = tmp_path / "trial"
    trial.mkdir()
    (trial / NOTES).symlink_to(elsewhere)
    TrialNotes(text="mine").write(trial)
    assert "untouched" in elsewhere.read_text()
    assert TrialNotes.read(trial).text == "mine"


def test_a_clone_has_no_notes_of_its_own(tmp_path: Path) -> None:
    experiment = Experiment.open(tmp_path, "one", {"seed": 1})
    experiment.close()
    TrialNotes(text="about this one").write(experiment.path)
    copied = clone(Trial(experiment.path), "two", checkpoint=True)
    assert TrialNotes.read(copied.path) == TrialNotes()
