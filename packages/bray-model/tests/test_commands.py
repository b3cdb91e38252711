import pytest

from bray_core.cli import main
from bray_model import Model


@pytest.mark.parametrize("command", ["serve", "export"])
def test_a_folder_without_export_is_told(tmp_path, capsys, command):
    assert main([command, str(tmp_path / "absent")]) == 2
    assert "no such folder: give an export or a trial" in capsys.readouterr().err
    assert main([command, str(tmp_path)]) == 2
    assert "neither an export (manifest.json) nor a trial with one" in capsys.readouterr().err


def test_a_packed_agent_is_told_what_takes_it(tmp_path, capsys):
    packed = tmp_path / "agent.bray"
    packed.write_bytes(b"PK")
    assert main(["export", str(packed)]) == 2
    assert "agent.bray: a file, where a folder is expected" in capsys.readouterr().err


def test_a_name_of_a_trial_is_told_its_folder(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "trials" / "walker").mkdir(parents=True)
    (tmp_path / "trials" / "walker" / "config.yaml").write_text("")
    assert main(["serve", "walker"]) == 2
    assert "walker: no such folder: give an export or a trial, did you mean trials/walker?" in (
        capsys.readouterr().err
    )


def test_export_shows_checks_and_copies(exported, tmp_path, capsys):
    folder, report, _ = exported
    target = tmp_path / "copy"
    assert main(["export", str(folder), "--output", str(target)]) == 0
    out = capsys.readouterr().out
    assert report.table() in out
    assert out.splitlines()[0] == f"policy version 0 in {folder}: all checksums match"
    assert out.splitlines()[-1] == f"copied to {target}; try: bray serve {target}"
    with Model(target) as copy:
        assert copy.version == 0


def test_export_refuses_a_broken_export(export_copy, capsys):
    (export_copy / "report.json").write_text("{}")
    assert main(["export", str(export_copy)]) == 2
    assert "report.json: its 2 bytes do not have the checksum" in capsys.readouterr().err
