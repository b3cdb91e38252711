import os
import signal
import subprocess
import sys
import time

import numpy as np
import pytest

from bray_core.errors import ClosedError, ConfigError, NotFoundError, SpecError
from bray_model.distributed import shared_weights
from bray_model.distributed.shared_weights import WeightsReader, WeightsWriter, sweep
from bray_model.versions.weights import WeightsStamp

NBYTES = 1_000_000


@pytest.fixture
def writer():
    writer = WeightsWriter(NBYTES)
    yield writer
    writer.close()
    assert not writer.path.exists()


def stamp(version):
    return WeightsStamp.of(version)


def block(version, nbytes=NBYTES):
    return np.full(nbytes, version % 251, np.uint8)


def test_readers_get_the_newest_whole(writer):
    reader = WeightsReader(writer.path)
    assert reader.version == writer.version == -1
    with pytest.raises(NotFoundError, match="nothing was published yet"):
        reader.read()
    for version in (0, 1, 7, 8, 300):
        writer.publish(stamp(version), block(version))
        assert reader.version == writer.version == version
        got, copied = reader.read()
        assert got == stamp(version)
        np.testing.assert_array_equal(copied, block(version))
    out = np.empty(NBYTES, np.uint8)
    assert reader.read(out)[1] is out
    reader.close()
    reader.close()


READER = """
import sys, time
import numpy as np
from bray_model.distributed.shared_weights import WeightsReader
reader = WeightsReader(sys.argv[1])
print("ready", flush=True)
last, reads, out = -1, 0, np.empty(reader.nbytes, np.uint8)
while last < int(sys.argv[2]):
    if reader.version < 0:
        continue
    (_, version, _), block = reader.read(out)
    assert version >= last, (version, last)
    assert (block == version % 251).all(), (version, np.unique(block))
    last, reads = version, reads + 1
print(reads)
"""


def test_no_reader_ever_sees_a_mixture(writer):
    """Publishes as fast as memory allows; each byte says which version it is of."""
    command = [sys.executable, "-c", READER, str(writer.path), "2000"]
    readers = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(3)]
    for reader in readers:
        assert reader.stdout is not None
        assert reader.stdout.readline() == "ready\n"
    blocks = [block(version) for version in range(251)]
    for version in range(2001):
        writer.publish(stamp(version), blocks[version % 251])
    for reader in readers:
        out, _ = reader.communicate(timeout=60)
        assert reader.returncode == 0
        assert int(out) >= 1
    assert writer.version == 2000


def test_an_older_version_under_a_later_sequence_is_newer(writer):
    reader = WeightsReader(writer.path)
    writer.publish(WeightsStamp(8, 8, 8), block(8))
    writer.publish(WeightsStamp(9, 2, 8), block(2))
    assert (reader.sequence, reader.version) == (9, 2)
    got, copied = reader.read()
    assert got == WeightsStamp(9, 2, 8)
    np.testing.assert_array_equal(copied, block(2))
    reader.close()


def test_a_reader_that_is_overtaken_takes_the_newer(writer, monkeypatch):
    reader = WeightsReader(writer.path)
    writer.publish(stamp(1), block(1))
    copy, overtaken = np.copyto, []

    def slow(out, source):
        copy(out, source)
        if not overtaken:
            overtaken.append(True)
            for version in (2, 3, 4):  # the last goes where the reader reads
                writer.publish(stamp(version), block(version))

    monkeypatch.setattr(shared_weights.np, "copyto", slow)
    (version, _, _), got = reader.read()
    monkeypatch.undo()
    assert version == 4
    np.testing.assert_array_equal(got, block(4))
    reader.close()


def test_readers_outlive_a_writer_that_is_killed():
    script = (
        "import time, numpy as np\n"
        "from bray_model.distributed.shared_weights import WeightsWriter\n"
        "from bray_model.versions.weights import WeightsStamp\n"
        "w = WeightsWriter(4096)\nw.publish(WeightsStamp(5, 5, 5), np.full(4096, 5, np.uint8))\n"
        "print(w.path, flush=True)\ntime.sleep(60)"
    )
    process = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    reader = WeightsReader(process.stdout.readline().strip())
    sweep()
    assert reader.path.exists(), "its writer lives"
    assert not reader.is_orphaned
    process.send_signal(signal.SIGKILL)
    process.communicate()
    deadline = time.monotonic() + 10
    while reader.path.exists() and time.monotonic() < deadline:
        sweep()
    assert not reader.path.exists(), "what a crash left is removed"
    assert reader.is_orphaned
    (_, version, _), got = reader.read()
    assert (version, got.sum()) == (5, 5 * 4096)
    reader.close()


def test_nonsense_is_refused(writer, tmp_path):
    with pytest.raises(ConfigError, match="nbytes: expected 1 or more, got 0"):
        WeightsWriter(0)
    with pytest.raises(SpecError, match="block: expected 1000000 bytes, got 10"):
        writer.publish(stamp(1), block(1, 10))
    writer.publish(stamp(3), block(3))
    with pytest.raises(ConfigError, match=r"stamp=WeightsStamp\(.*\): expected a sequence above 3"):
        writer.publish(stamp(3), block(3))
    with pytest.raises(NotFoundError, match="No such file"):
        WeightsReader(tmp_path / "none")
    for content in (b"", b"something else", os.urandom(8192)):
        (tmp_path / "other").write_bytes(content)
        with pytest.raises(NotFoundError, match="not a file of weights"):
            WeightsReader(tmp_path / "other")


def test_a_closed_writer_publishes_no_more():
    writer = WeightsWriter(10)
    reader = WeightsReader(writer.path)
    writer.close()
    writer.close()
    assert reader.is_orphaned
    with pytest.raises(ClosedError, match="the writer was closed"):
        writer.publish(stamp(1), block(1, 10))
    reader.close()


def test_memory_that_is_not_there_is_told():
    free = os.statvfs("/dev/shm")
    own = f"bray-weights-{os.getpid()}-"
    before = {name for name in os.listdir("/dev/shm") if name.startswith(own)}
    with pytest.raises(ConfigError, match=r"bytes of shared memory are needed in /dev/shm: "):
        WeightsWriter(free.f_bavail * free.f_frsize * 2)
    assert {name for name in os.listdir("/dev/shm") if name.startswith(own)} <= before
