"""Heads of requests in binary are read once, whatever follows them."""

from __future__ import annotations

import json
import sys
from typing import Any

import numpy as np
import pytest

from bray_core.errors import SpecError
from bray_core.nested import ArraySpec
from bray_model.serving import infer_head
from bray_model.serving.infer_request import InferRequest
from bray_model.signature import Signature


def signature() -> Signature:
    spec = ArraySpec(np.dtype("float32"), (3,))
    flags = ArraySpec(np.dtype(bool), (2,))
    return Signature(({"alive": flags, "seen": spec},), ArraySpec(np.dtype("float32"), (2,)))


def head(rows: int, **more: Any) -> bytes:
    inputs = [
        {
            "name": name,
            "datatype": kind,
            "shape": [rows, width],
            "parameters": {"binary_data_size": rows * width * size},
        }
        for name, kind, width, size in [
            ("inputs[0]/alive", "BOOL", 2, 1),
            ("inputs[0]/seen", "FP32", 3, 4),
        ]
    ]
    return json.dumps({"inputs": inputs, **more}).encode()


def asked(text: bytes, rows: int, seed: int, of: Signature) -> tuple[InferRequest, Any, Any]:
    rng = np.random.default_rng(seed)
    alive = rng.integers(0, 2, (rows, 2)).astype(bool)
    seen = rng.normal(size=(rows, 3)).astype(np.float32)
    body = text + alive.tobytes() + seen.tobytes()
    return InferRequest(body, b"%d" % len(text), of), alive, seen


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Note of each head that is read: its size."""
    noted: list[int] = []
    plain = infer_head._read

    def noting(body: bytes, size: int, of: Signature) -> Any:
        noted.append(size)
        return plain(body, size, of)

    monkeypatch.setattr(infer_head, "_read", noting)
    return noted


def test_a_head_is_read_once_and_its_numbers_each_time(read: list[int]) -> None:
    of = signature()
    for seed in range(4):
        for rows in (1, 5):
            request, alive, seen = asked(head(rows), rows, seed, of)
            assert request.num_rows == rows
            np.testing.assert_array_equal(request.leaves[0], alive)
            np.testing.assert_array_equal(request.leaves[1], seen)
    assert read == [len(head(1)), len(head(5))]
    asked(head(1), 1, 0, signature())
    assert len(read) == 3, "of another model it is read anew"


def test_few_heads_are_known_and_no_body_is_held(read: list[int]) -> None:
    of = signature()
    for number in range(200):
        asked(head(1, id=str(number)), 1, 0, of)
    assert len(read) == 200
    assert len(infer_head._known_heads(of.output_tree)) <= infer_head._MAX_KNOWN
    large, most = head(1, id="x" * 2000), infer_head._MAX_KNOWN_BYTES
    asked(large, 1, 0, of)
    asked(large, 1, 0, of)
    assert len(read) == 202, "long ones are not kept"
    assert all(len(text) <= most for text in infer_head._known_heads(of.output_tree))


def test_what_followed_a_known_head_is_given_back() -> None:
    of, text = signature(), head(1)
    body = text + bytes(14)
    before = sys.getrefcount(body)
    InferRequest(body, b"%d" % len(text), of)
    assert len(infer_head._known_heads(of.output_tree)) == 1
    assert sys.getrefcount(body) == before


def test_what_is_wrong_behind_a_known_head_is_said() -> None:
    of, text = signature(), head(2)
    asked(text, 2, 0, of)
    for body, problem in [
        (text + bytes(27), r"seen: 1 of its bytes are missing"),
        (text + bytes(29), r"1 bytes follow that no input names"),
    ]:
        with pytest.raises(SpecError, match=problem):
            InferRequest(body, b"%d" % len(text), of)
    with pytest.raises(SpecError, match=r"expected FP32"):
        asked(text.replace(b"FP32", b"FP64"), 2, 0, of)
    with pytest.raises(SpecError, match=r"expected FP32"):
        asked(text.replace(b"FP32", b"FP64"), 2, 0, of)


def plain_signature() -> Signature:
    seen, load = ArraySpec(np.dtype("float32"), (3,)), ArraySpec(np.dtype("int64"), ())
    value = ArraySpec(np.dtype("float32"), (2,))
    return Signature(({"seen": seen, "load": load},), {"value": value, "rank": load})


def plain_head(rows: int, **more: Any) -> bytes:
    """Return a head whose inputs are in another order than the model's."""
    sizes = [("inputs[0]/seen", "FP32", [rows, 3], 12), ("inputs[0]/load", "INT64", [rows, 1], 8)]
    inputs = [
        {
            "name": name,
            "datatype": kind,
            "shape": shape,
            "parameters": {"binary_data_size": rows * size},
        }
        for name, kind, shape, size in sizes
    ]
    binary = {"binary_data_output": True}
    return json.dumps({"inputs": inputs, "parameters": binary, **more}).encode()


def test_places_of_numbers_are_those_that_the_client_chose() -> None:
    of, rng = plain_signature(), np.random.default_rng(0)
    for rows in (1, 4, 1):
        seen = rng.normal(size=(rows, 3)).astype(np.float32)
        load = rng.integers(-9, 9, rows)
        text = plain_head(rows)
        size = b"%d" % len(text)
        request = InferRequest(text + seen.tobytes() + load.tobytes(), size, of)
        leaves = dict(zip(of.input_tree.paths, request.leaves, strict=True))
        np.testing.assert_array_equal(leaves["inputs[0]/seen"], seen)
        np.testing.assert_array_equal(leaves["inputs[0]/load"], load)
        for body, problem in [
            (text + bytes(20 * rows - 1), "1 of its bytes are missing"),
            (text + bytes(20 * rows + 1), "1 bytes follow that no input names"),
        ]:
            with pytest.raises(SpecError, match=problem):
                InferRequest(body, size, of)
    told = plain_head(1).replace(b'"binary_data_size": 12', b'"binary_data_size": 13')
    with pytest.raises(SpecError, match="expected binary_data_size 12"):
        InferRequest(told + bytes(21), b"%d" % len(told), of)


def test_replies_in_binary_say_their_model_version_and_id_each_time() -> None:
    of, rng = plain_signature(), np.random.default_rng(0)
    for name, version, more in [
        ("a", 1, {}),
        ("a", 2, {}),
        ("b", 2, {}),
        ("a", 1, {"id": "x"}),
        ("a", 1, {}),
    ]:
        text = plain_head(2, **more)
        request = InferRequest(text + bytes(40), b"%d" % len(text), of)
        answers = {
            "outputs/rank": rng.integers(0, 9, 2),
            "outputs/value": rng.normal(size=(2, 4)).astype(np.float32)[:, ::2],
        }
        leaves = [answers[path] for path in of.output_tree.paths]
        body, size = request.reply_of(name, leaves, version)
        assert size is not None
        said = json.loads(body[:size])
        assert (said["model_name"], said["model_version"]) == (name, str(version))
        assert said.get("id") == more.get("id")
        assert [one["name"] for one in said["outputs"]] == list(of.output_tree.paths)
        assert body[size:] == b"".join(leaf.tobytes() for leaf in leaves)


def test_replies_of_which_a_part_is_in_json_hold_its_numbers_each_time() -> None:
    of = plain_signature()
    path = of.output_tree.paths[0]
    text = plain_head(1, outputs=[{"name": path, "parameters": {"binary_data": False}}])
    request = InferRequest(text + bytes(20), b"%d" % len(text), of)
    for rank in (3, 4):
        leaves = [np.full((1,), rank), np.zeros((1, 2), np.float32)]
        body, size = request.reply_of("a", leaves, 1)
        assert size is None
        assert json.loads(body)["outputs"][0]["data"] == [rank]
