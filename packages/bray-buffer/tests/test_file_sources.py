"""Sources in files: Parquet and Arrow, recorded episodes, Minari data sets."""

import sys

import numpy as np
import pytest

from bray_buffer.sources import (
    EpisodeSource,
    MinariSource,
    ParquetSource,
    SourceBuffer,
    SourceConfig,
)
from bray_core import nested
from bray_core.errors import ConfigError, MissingExtraError, NotFoundError, SpecError
from bray_core.layout import Layout, Packed


def buffer(source, **config):
    config = {"batch_size": 4, "num_workers": 2, **config}
    return SourceBuffer(source, SourceConfig(**config))


def joined(source, **config):
    """All samples of a source as one tree."""
    return nested.concat([batch.tree for batch in buffer(source, **config)])


class TestParquet:
    @pytest.fixture
    def table(self):
        pa = pytest.importorskip("pyarrow")

        def table(start, stop, bad=()):
            numbers = np.arange(start, stop)
            vectors = np.repeat(numbers, 3).astype(np.float32)
            matrices = pa.FixedSizeListArray.from_arrays(
                pa.FixedSizeListArray.from_arrays(np.arange(len(numbers) * 6) + 6 * start, 3), 2
            )
            done = pa.array([None if n in bad else bool(n % 2) for n in numbers])
            return pa.table(
                {
                    "number": numbers,
                    "vector": pa.FixedSizeListArray.from_arrays(vectors, 3),
                    "matrix": matrices,
                    "flags": pa.StructArray.from_arrays([done], ["done"]),
                    "name": [str(n) for n in numbers],
                }
            )

        return table

    @pytest.fixture
    def write(self, tmp_path, table):
        """Two files, 23 rows, in groups of 5 and 4; returns their paths."""
        import pyarrow as pa
        import pyarrow.parquet as pq

        def write(kind=".parquet", bad=()):
            paths = [tmp_path / f"{name}{kind}" for name in "ab"]
            for path, (start, stop, group) in zip(paths, [(0, 13, 5), (13, 23, 4)], strict=True):
                if kind == ".parquet":
                    pq.write_table(table(start, stop, bad), path, row_group_size=group)
                    continue
                with (
                    pa.OSFile(str(path), "wb") as sink,
                    pa.ipc.new_file(sink, table(0, 1).schema) as writer,
                ):
                    writer.write_table(table(start, stop, bad), max_chunksize=group)
            return paths

        return write

    @pytest.mark.parametrize("kind", [".parquet", ".arrow"])
    def test_columns_become_leaves_in_the_order_of_rows(self, write, kind):
        source = ParquetSource(write(kind), columns=["number", "vector", "matrix", "flags"])
        assert source.num_units == 3 + 3
        tree = joined(source)
        assert tree["number"].tolist() == list(range(23))
        assert tree["vector"].dtype == np.float32
        assert (tree["vector"] == tree["number"][:, None]).all()
        assert np.array_equal(tree["matrix"], np.arange(23 * 6).reshape(23, 2, 3))
        assert tree["flags"]["done"].tolist() == [bool(n % 2) for n in range(23)]

    def test_shuffled_and_shared_among_ranks(self, write):
        source = ParquetSource(write(), columns=["number"])
        whole = buffer(source, shuffle=True, shuffle_size=8)
        shares = [
            nested.concat([batch.tree for batch in whole.shard(rank, 2)])["number"].tolist()
            for rank in range(2)
        ]
        assert sorted(shares[0] + shares[1]) == list(range(23))
        assert shares[0] != sorted(shares[0])

    def test_rows_with_a_null_are_named_or_skipped(self, write):
        paths = write(bad=(7, 15, 22))
        source = ParquetSource(paths, columns=["number", "flags"])
        with pytest.raises(SpecError, match=r"a\.parquet: row 7: column 'flags' has a null"):
            joined(source)
        assert joined(source, on_error="skip")["number"].tolist() == [
            n for n in range(23) if n not in (7, 15, 22)
        ]
        with pytest.raises(SpecError, match=r"b\.parquet: row 2: column 'flags' has a null"):
            joined(ParquetSource(paths[1], columns=["number", "flags"]))

    def test_lists_of_one_length_are_arrays_as_pandas_writes_them(self, tmp_path):
        import pyarrow as pa
        import pyarrow.parquet as pq

        vectors = [[0.0, 1.0], [2.0], None, [3.0, 4.0], [5.0, None], [6.0, 7.0]]
        matrices = [[[n, n], [n, 0], [1, 2]] for n in range(6)]
        path = tmp_path / "lists.parquet"
        pq.write_table(pa.table({"vector": vectors, "matrix": matrices}), path)
        every = joined(ParquetSource(path, columns=["matrix"]))["matrix"]
        assert np.array_equal(every, matrices)
        found = joined(ParquetSource(path), on_error="skip")
        assert found["vector"].tolist() == [vectors[row] for row in (0, 3, 5)]
        assert np.array_equal(found["matrix"], [matrices[row] for row in (0, 3, 5)])
        with pytest.raises(SpecError, match="row 1: column 'vector' has a null, or a list of anot"):
            joined(ParquetSource(path))

    def test_a_broken_row_group_is_named_or_skipped(self, write):
        paths = write()
        source = ParquetSource(paths, columns=["number"])
        raw = bytearray(paths[0].read_bytes())
        raw[4:200] = bytes(196)  # inside the first group
        paths[0].write_bytes(raw)
        layout = Layout(nested.spec({"number": np.int64(0)}))
        config = SourceConfig(batch_size=4)
        with pytest.raises(SpecError, match=r"a\.parquet row group 0: cannot be read"):
            SourceBuffer(source, config, layout=layout).pop()
        skipping = SourceBuffer(source, SourceConfig(batch_size=40, on_error="skip"), layout=layout)
        assert skipping.pop().tree["number"].tolist() == list(range(5, 23))
        assert skipping.stats()["skipped"] == 1

    def test_what_is_no_such_file_is_refused_at_once(self, write, tmp_path, table):
        import pyarrow as pa
        import pyarrow.parquet as pq

        path, other = write()
        with pytest.raises(NotFoundError, match=r"paths: no file .*absent\.parquet"):
            ParquetSource(tmp_path / "absent.parquet")
        with pytest.raises(ConfigError, match=r"expected files named \.parquet, .* got .*x\.csv"):
            ParquetSource(tmp_path / "x.csv")
        with pytest.raises(ConfigError, match="expected at least one file"):
            ParquetSource([])
        with pytest.raises(ConfigError, match=r"a\.parquet has no 'nmber', but number, vector"):
            ParquetSource(path, columns=["nmber"])
        with pytest.raises(ConfigError, match=r"column 'name': expected numbers .* got string"):
            ParquetSource(path)
        pq.write_table(pa.table({"number": [["a"], ["b"]]}), other)
        with pytest.raises(ConfigError, match=r"b\.parquet: column 'number': .* got string"):
            ParquetSource([path, other], columns=["number"])
        path.write_bytes(b"PAR1 rubbish")
        with pytest.raises(SpecError, match=r"a\.parquet: cannot be read: "):
            ParquetSource(path)

    def test_the_extra_is_named(self, tmp_path, monkeypatch):
        monkeypatch.setitem(sys.modules, "pyarrow", None)
        with pytest.raises(MissingExtraError, match=r"ParquetSource .* bray-buffer\[parquet\]"):
            ParquetSource(tmp_path / "a.parquet")


class TestEpisodes:
    def make(self, tmp_path, count=3):
        paths = [tmp_path / f"{number}.episode" for number in range(count)]
        for number, path in enumerate(paths):
            path.write_bytes(bytes([number] * (number + 1)))
        return paths

    def test_the_callers_functions_make_the_samples(self, tmp_path):
        layout = Layout(nested.spec({"x": np.uint8(0)}))

        def to_segments(episode):
            for number, value in enumerate(episode):
                tree = {"x": np.uint8(value)}
                yield tree if number % 2 else Packed(layout, layout.pack(tree))

        source = EpisodeSource(self.make(tmp_path), lambda path: path.read_bytes(), to_segments)
        assert joined(source)["x"].tolist() == [0, 1, 1, 2, 2, 2]

    def test_a_broken_file_is_named_or_skipped(self, tmp_path):
        paths = self.make(tmp_path)

        def read(path):
            if path == paths[1]:
                raise SpecError("a damaged episode")
            return path.read_bytes()

        def to_segments(raw):
            return [{"x": np.uint8(value)} for value in raw]

        source = EpisodeSource(paths, read, to_segments)
        with pytest.raises(SpecError, match=r"1\.episode: a damaged episode"):
            joined(source)
        assert joined(source, on_error="skip")["x"].tolist() == [0, 2, 2, 2]
        with pytest.raises(ConfigError, match="expected at least one file"):
            EpisodeSource([], read, to_segments)


@pytest.mark.filterwarnings("ignore::UserWarning:minari.utils")
class TestMinari:
    LENGTHS = (5, 3, 8)

    @pytest.fixture
    def dataset(self, tmp_path, monkeypatch):
        minari = pytest.importorskip("minari", reason="minari is not installed")
        pytest.importorskip("h5py", reason="minari's storage is not installed")
        from gymnasium import spaces
        from minari.data_collector.episode_buffer import EpisodeBuffer

        monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path))
        episodes = [
            EpisodeBuffer(
                id=number,
                observations=np.repeat(
                    np.arange(length + 1, dtype=np.float32)[:, None] + 100 * number, 2, axis=1
                ),
                actions=np.arange(length),
                rewards=np.arange(length) * 0.5,
                terminations=[False] * (length - 1) + [number != 1],
                truncations=[False] * (length - 1) + [number == 1],
            )
            for number, length in enumerate(self.LENGTHS)
        ]
        minari.create_dataset_from_buffers(
            "bray/test-v0",
            episodes,
            observation_space=spaces.Box(-1e3, 1e3, (2,), np.float32),
            action_space=spaces.Discrete(10),
        )
        return "bray/test-v0"

    def test_episodes_are_cut_into_segments(self, dataset):
        tree = joined(MinariSource(dataset, length=4), batch_size=8)
        assert tree["length"].tolist() == [4, 1, 3, 4, 4]
        starts = [0, 4, 100, 200, 204]
        for row, (start, length) in enumerate(zip(starts, tree["length"], strict=True)):
            padding = [0] * (4 - length)
            steps = list(range(start, start + length))
            assert tree["observation"][row, :, 0].tolist() == steps + padding
            assert tree["final_observation"][row].tolist() == [start + length] * 2
            assert tree["action"][row].tolist() == [n % 100 for n in steps] + padding
            assert tree["reward"][row].tolist() == [n % 100 / 2 for n in steps] + padding
        assert np.argwhere(tree["terminated"]).tolist() == [[1, 0], [4, 3]]
        assert np.argwhere(tree["truncated"]).tolist() == [[2, 2]]
        assert tree["reward"].dtype == np.float32

    def test_what_is_absent_is_named(self, dataset, monkeypatch):
        with pytest.raises(NotFoundError, match="'bray/absent-v0' is not on this machine: fetch"):
            MinariSource("bray/absent-v0", length=4)
        with pytest.raises(ConfigError, match="length: expected 1 or more, got 0"):
            MinariSource(dataset, length=0)
        monkeypatch.setitem(sys.modules, "minari", None)
        with pytest.raises(MissingExtraError, match=r"MinariSource .* bray-buffer\[minari\]"):
            MinariSource(dataset, length=4)
