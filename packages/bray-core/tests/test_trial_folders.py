"""What names a trial: a name below the project, or a folder."""

from __future__ import annotations

from pathlib import Path

import pytest

from bray_core.errors import ConfigError
from bray_core.files.trial_folders import trial_path


def test_a_slash_tells_a_folder_from_a_name() -> None:
    assert trial_path("walker") == Path("trials/walker")
    assert trial_path("runs/walker", Path("elsewhere")) == Path("runs/walker")
    assert trial_path(Path("walker"), Path("elsewhere")) == Path("walker")


def test_the_folder_that_somebody_is_in_is_no_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "walker" / "launches").mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "walker")
    assert trial_path(".") == trial_path("./") == tmp_path / "walker"
    monkeypatch.chdir("launches")
    assert trial_path("..") == tmp_path / "walker"


@pytest.mark.parametrize("name", ["", "a" * 300, "runs/" + "é" * 128, 7])
def test_what_no_folder_can_be_named_is_refused_in_words(name: object) -> None:
    with pytest.raises(ConfigError, match="trial: expected"):
        trial_path(name)  # type: ignore[arg-type]
