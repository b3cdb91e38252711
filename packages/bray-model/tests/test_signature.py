import pickle

import numpy as np
import pytest
import torch

from bray_core.errors import SpecError
from bray_core.nested import ArraySpec
from bray_model import Model, Signature

F32 = np.dtype(np.float32)


class Function(torch.nn.Module):
    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, *inputs):
        return self.function(*inputs)


def test_probe_finds_nested_specs_without_batch_dimension(policy, observations):
    signature = Model(policy, observations(3)).signature
    assert signature.inputs == (
        {"units": ArraySpec(F32, (4,)), "alive": ArraySpec(np.dtype(bool), ())},
        (ArraySpec(F32, ()),),
    )
    assert signature.outputs == {
        "logits": ArraySpec(F32, (3,)),
        "heads": [ArraySpec(F32, ()), ArraySpec(F32, (2,))],
        "best": (ArraySpec(np.dtype(np.int64), ()),),
    }
    assert pickle.loads(pickle.dumps(signature)) == signature


def test_tensors_may_be_examples():
    assert Model(torch.nn.Linear(4, 2), torch.zeros(1, 4)).signature == Signature(
        (ArraySpec(F32, (4,)),), ArraySpec(F32, (2,))
    )


LINEAR = torch.nn.Linear(4, 2)
X = np.zeros((3, 4), np.float32)


@pytest.mark.parametrize(
    ("module", "example", "message"),
    [
        # Without batch dimension: a Linear takes [4] for a row and answers [2] ...
        (LINEAR, X[0], r"float32 \(4,\), got 2: example inputs need a leading batch dimension"),
        # ... or answers [4], and then fails for [5].
        (torch.nn.Linear(4, 4), X[0], r"\(5,\), while 4 rows worked: is the batch dimension miss"),
        (LINEAR, np.float32(0), r"example_inputs\[0\]: expected a leading batch dimension"),
        (LINEAR, X[:1, :2], r"the module fails on example_inputs\[0\]: float32 \(1, 2\)"),
        (lambda x: {"a": x.mean()}, X, "outputs/a: expected a leading batch dimension"),
        (lambda x: x[:1], X, r"expected 3 rows for example_inputs\[0\]: float32 \(3, 4\), got 1"),
        (lambda x: torch.zeros(1, 4), X[:1], "outputs: expected 2 rows"),
        (lambda x: x @ x.T, X, "outputs: expected one shape for every batch size"),
        (lambda x: {"a": x, "b": None}, X, "outputs/b: expected a tensor, got NoneType"),
        (lambda x: [x.bfloat16()], X, r"outputs\[0\]: torch.bfloat16 has no numpy form"),
        (lambda x: (), X, "outputs: expected arrays with at least one row, got none"),
    ],
)
def test_probe_refuses(module, example, message):
    module = module if isinstance(module, torch.nn.Module) else Function(module)
    with pytest.raises(SpecError, match=message):
        Model(module, example)
