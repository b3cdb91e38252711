"""An agent as one file: packed, unpacked, and refused where it is broken or hostile."""

import json
import os
import random
import struct
import zipfile
from pathlib import Path

import pytest

from bray_core.errors import AlreadyExistsError, BrayError, ExportError
from bray_model import Manifest
from bray_model.export_files.agent_file import (
    AgentIndex,
    PackedFile,
    pack_agent,
    read_index,
    unpack_agent,
    unpacked,
)
from bray_model.export_files.manifest import sha256

TEXTS = {"card.md": "# A policy — päckchen\n", "settings.yaml": "seed: 1\n"}


@pytest.fixture
def agent(exported, tmp_path) -> Path:
    folder, _, _ = exported
    pack_agent(tmp_path / "agent.bray", {"policy": folder}, TEXTS, {"environment": "CartPole-v1"})
    return tmp_path / "agent.bray"


def members(path: Path) -> dict[str, bytes]:
    with zipfile.ZipFile(path) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def write(path: Path, contents, compression=zipfile.ZIP_STORED) -> Path:
    with zipfile.ZipFile(path, "w", compression) as archive:
        for name, data in contents:
            archive.writestr(name, data)
    return path


def indexed(files: dict[str, bytes]) -> list[tuple[str, bytes]]:
    """Members with an index that is right."""
    packed = {name: PackedFile(sha256=sha256(d), bytes=len(d)) for name, d in files.items()}
    return [("agent.json", AgentIndex(files=packed).to_json()), *files.items()]


def refused(path: Path, words: str) -> None:
    """Unpacking fails in one line, and leaves nothing outside the folder."""
    folder = path.parent / "unpacked"
    folder.mkdir()
    before = sorted(path.parent.iterdir())
    with pytest.raises(ExportError, match=words) as caught:
        unpack_agent(path, folder)
    assert "\n" not in str(caught.value)
    assert str(path) in str(caught.value)
    assert sorted(path.parent.iterdir()) == before


def test_what_was_packed_is_unpacked(exported, agent, tmp_path):
    folder, _, _ = exported
    with unpacked(agent) as there:
        found = there / "exports/policy"
        assert Manifest.read(found) == Manifest.read(folder)
        for name in (*Manifest.read(folder).files, "manifest.json"):
            assert (found / name).read_bytes() == (folder / name).read_bytes()
        assert {name: (there / name).read_text() for name in TEXTS} == TEXTS
    assert not there.exists()
    assert read_index(agent).environment == {"environment": "CartPole-v1"}
    with unpacked(folder) as same:
        assert same == folder


def test_the_same_agent_is_the_same_bytes_and_any_unzip_opens_it(exported, agent, tmp_path):
    pack_agent(tmp_path / "b", {"policy": exported[0]}, TEXTS, {"environment": "CartPole-v1"})
    assert (tmp_path / "b").read_bytes() == agent.read_bytes()
    with zipfile.ZipFile(agent) as archive:
        assert archive.testzip() is None
        assert archive.namelist()[:2] == ["agent.json", "card.md"]


def test_an_existing_file_is_left(exported, agent):
    before = agent.read_bytes()
    with pytest.raises(AlreadyExistsError, match=r"agent\.bray: exists already: name another"):
        pack_agent(agent, {"policy": exported[0]}, TEXTS)
    assert agent.read_bytes() == before


def test_a_broken_export_and_an_odd_name_are_not_packed(export_copy, tmp_path):
    with pytest.raises(ExportError, match=r"files: expected card\.md, .* got 'exports/\.\./"):
        pack_agent(tmp_path / "a", {"..": export_copy}, TEXTS)
    (export_copy / "model.onnx").write_bytes(b"changed")
    with pytest.raises(ExportError, match=r"model\.onnx: .* do not have the checksum"):
        pack_agent(tmp_path / "a", {"policy": export_copy}, TEXTS)
    assert not (tmp_path / "a").exists()


@pytest.mark.parametrize(
    "name",
    ["../evil", "/tmp/evil", "exports/../../evil", "exports/policy/../x", "exports/a/b/c", "evil",
     "exports/.hidden/x", "exports/policy/", "C:\\evil", "exports\\policy\\x"],
)  # fmt: skip
def test_a_name_that_leads_elsewhere_is_refused(tmp_path, name):
    path = write(tmp_path / "agent.bray", indexed({"card.md": b"", name: b"evil"}))
    refused(path, r"agent\.json: files: expected card\.md, settings\.yaml or exports/NAME/FILE")


def test_a_link_becomes_a_plain_file(tmp_path):
    contents = indexed({"exports/policy/x": b"/etc/passwd"})
    link = zipfile.ZipInfo("exports/policy/x")
    link.create_system, link.external_attr = 3, 0o120777 << 16
    path = write(tmp_path / "agent.bray", [contents[0], (link, b"/etc/passwd")])
    (tmp_path / "there").mkdir()
    unpack_agent(path, tmp_path / "there")
    found = tmp_path / "there/exports/policy/x"
    assert not found.is_symlink()
    assert found.read_bytes() == b"/etc/passwd"


def test_a_bomb_is_refused(tmp_path):
    bomb = indexed({"exports/policy/model.onnx": bytes(50_000_000)})
    path = write(tmp_path / "agent.bray", bomb, zipfile.ZIP_DEFLATED)
    assert path.stat().st_size < 100_000
    refused(path, r"got '[^']*' compressed: it may unpack to any size")


def test_members_that_share_their_bytes_are_refused(tmp_path):
    """Many entries of the directory that point at one member."""
    data = bytes(10_000)
    names = [f"exports/p/f{i:03}" for i in range(50)]
    contents = indexed(dict.fromkeys(names, data))
    path = tmp_path / "agent.bray"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(*contents[0])
        archive.writestr(names[0], data)
        one = archive.getinfo(names[0])
        for name in names[1:]:
            again = zipfile.ZipInfo(name)
            again.header_offset, again.file_size = one.header_offset, one.file_size
            again.compress_size, again.CRC = one.compress_size, one.CRC
            archive.filelist.append(again)
    refused(path, "got (files that share their bytes|.*[Oo]verlap)")


def test_a_directory_of_too_many_entries_is_not_read(tmp_path):
    many = [(f"exports/p/f{i}", b"") for i in range(1100)]
    refused(write(tmp_path / "agent.bray", many), "got 1100 files, where 1000 are allowed")


def test_the_larger_kind_of_zip_is_refused(agent):
    data = agent.read_bytes()
    locator = struct.pack("<4sLQL", b"PK\6\7", 0, len(data) - 22, 1)
    agent.write_bytes(data[:-22] + locator + data[-22:])
    refused(agent, "a zip of the kind that is larger than 4 GB")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda m: m.pop("agent.json"), "no agent.json"),
        (lambda m: m.update({"agent.json": b"[]"}), r"agent\.json: expected an object, got list"),
        (lambda m: m.update({"agent.json": b"{"}), r"(?<!json: )agent\.json: not JSON"),
        (lambda m: m.update({"agent.json": b"[" * 99_999}), r"agent\.json: .*not JSON"),
        (lambda m: m.update({"agent.json": b'{"format": 2}'}), "expected format 1, got 2"),
        (lambda m: m.update({"agent.json": b'{"format": 1}'}), r"agent\.json: .*`files`"),
        (lambda m: m.update({"exports/policy/evil": b""}), "which agent.json and the zip do not"),
        (lambda m: m.pop("card.md"), "'card.md', which agent.json and the zip do not both hold"),
        (lambda m: m.update({"card.md": bytes(50)}), "of another size"),
        (lambda m: m.update({"settings.yaml": b"seed: 2\n"}), r"settings\.yaml does not have the"),
    ],
)  # fmt: skip
def test_a_file_that_disagrees_with_itself_is_refused(agent, change, words):
    contents = members(agent)
    change(contents)
    refused(write(agent, contents.items()), words)


def test_sizes_and_checksums_of_the_index_are_checked(agent):
    contents = members(agent)
    index = json.loads(contents["agent.json"])
    index["files"]["card.md"]["sha256"] = "../../x"
    refused(
        write(agent, (contents | {"agent.json": json.dumps(index).encode()}).items()),
        r"files: card\.md: expected a size and a sha256",
    )


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "0 bytes"),
        (b"environment: CartPole-v1\n" * 10, "something that does not end as a zip does"),
        (b"\x80\x04cos\nsystem\n." * 10, "something that does not end as a zip does"),
    ],
)
def test_something_else_is_refused(tmp_path, content, words):
    path = tmp_path / "agent.bray"
    path.write_bytes(content)
    refused(path, f"expected an agent file that `bray pack` wrote, got {words}")


def test_two_files_of_one_name_and_encryption_are_refused(agent, tmp_path):
    data = bytearray(agent.read_bytes())
    begin = data.rfind(b"PK\1\2exports"[:4], 0, data.rfind(b"PK\1\2"))
    data[begin + 8] |= 1
    other = tmp_path / "other" / "agent.bray"
    other.parent.mkdir()
    other.write_bytes(data)
    refused(other, "encrypted")
    with pytest.warns(UserWarning, match="Duplicate name"):
        write(agent, [*members(agent).items(), ("card.md", b"another")])
    refused(agent, "two files of one name")


def test_a_pipe_is_not_waited_for(tmp_path):
    os.mkfifo(tmp_path / "agent.bray")
    refused(tmp_path / "agent.bray", "cannot be read: expected a regular file, got a named pipe")


def test_flipped_and_missing_bytes_never_raise_another_error(agent, tmp_path):
    """Bytes anywhere, those of the directory among them."""
    data, draw = agent.read_bytes(), random.Random(7)
    told = 0
    for number in range(300):
        broken = bytearray(data)
        for _ in range(draw.choice((1, 3))):
            first = len(data) - 1200 if number % 2 else 0
            place = draw.randrange(first, len(data))
            broken[place] = draw.randrange(256)
        if number % 10 == 0:
            broken = broken[: draw.randrange(len(data))]
        agent.write_bytes(broken)
        folder = tmp_path / f"to{number}"
        folder.mkdir()
        try:
            unpack_agent(agent, folder)
        except BrayError:
            told += 1
    assert told > 100
