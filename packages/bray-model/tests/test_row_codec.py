"""Rows by their place in the codec's bytes are those that the codec itself gives."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bray_core import nested
from bray_core.codec import decode, encode
from bray_core.nested import ArraySpec
from bray_model.serving.row_codec import RowCodec
from bray_model.signature import Signature

DTYPES = ["bool", "uint8", "int16", "int64", "float16", "float32", "float64"]
leaf = st.builds(
    lambda dtype, shape: ArraySpec(np.dtype(dtype), tuple(shape)),
    st.sampled_from(DTYPES),
    st.lists(st.integers(0, 3), max_size=3),
)
tree = st.recursive(
    leaf,
    lambda child: st.one_of(
        st.dictionaries(st.text(max_size=3), child, min_size=1, max_size=3),
        st.lists(child, min_size=1, max_size=3).map(tuple),
    ),
    max_leaves=5,
)


def values(spec, rng, *lead):
    shape = (*lead, *spec.shape)
    if spec.dtype.kind == "b":
        return rng.integers(0, 2, shape).astype(bool)
    raw = rng.integers(0, 256, (*shape, spec.dtype.itemsize), np.uint8)
    return raw.view(spec.dtype).reshape(shape)


@given(st.lists(tree, min_size=1, max_size=3), tree, st.integers(1, 5), st.integers(0, 2**40))
def test_it_reads_and_writes_what_the_codec_does(inputs, outputs, rows, version):
    signature = Signature(tuple(inputs), outputs)
    codec = RowCodec(signature)
    rng = np.random.default_rng(rows)
    given_rows = [nested.map(lambda s: values(s, rng), signature.inputs) for _ in range(rows)]
    bodies = [encode(list(row)) for row in given_rows]
    leaves = codec.read(bodies)
    assert leaves is not None
    for index, body in enumerate(bodies):
        wanted = signature.input_tree.leaves(decode(body))
        for got, want in zip(leaves, wanted, strict=True):
            assert (got.dtype, got.shape) == (want.dtype, (rows, *want.shape))
            assert got[index].tobytes() == want.tobytes()
    answers = [values(spec, rng, rows) for spec in signature.output_tree.specs]
    assert codec.write(answers, version) == [
        encode(
            {
                "outputs": signature.output_tree.build([leaf[i, ...] for leaf in answers]),
                "version": version,
            }
        )
        for i in range(rows)
    ]


ROW = {"units": np.ones(3, np.float32), "alive": np.bool_(True)}
SIGNATURE = Signature(
    (nested.spec({"units": ROW["units"], "alive": np.asarray(True)}),),
    ArraySpec(np.dtype(np.float32), (2,)),
)


@pytest.mark.parametrize(
    "body",
    [
        b"",
        encode([ROW])[:-1],
        encode([ROW]) + b"\0",
        encode([{**ROW, "units": np.ones(3, np.int32)}]),
        encode([{"Units": ROW["units"], "alive": ROW["alive"]}]),
        encode([{"units": ROW["units"], "alive": ROW["alive"]}]),  # keys in another order
        bytes(len(encode([ROW]))),
    ],
)
def test_other_layouts_are_left_to_the_codec(body):
    codec = RowCodec(SIGNATURE)
    good = encode([dict(sorted(ROW.items()))])
    assert codec.read([good, good]) is not None
    assert codec.read([good, body]) is None


def test_bools_that_are_neither_are_left_to_the_codec():
    codec = RowCodec(SIGNATURE)
    good = encode([dict(sorted(ROW.items()))])
    other = encode([{"alive": np.bool_(False), "units": ROW["units"]}])
    place = next(i for i in range(len(good)) if good[i] != other[i])
    assert codec.read([good[:place] + b"\2" + good[place + 1 :]]) is None
