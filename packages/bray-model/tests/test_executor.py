import numpy as np
import pytest
import torch

from bray_core import metrics, nested
from bray_core.errors import ClosedError, SpecError
from bray_model import ModelConfig, Signature
from bray_model.batching.executor import BatchExecutor, BatchRequest, NonFiniteError
from bray_model.engines.torch_engine import TorchEngine
from bray_model.versions.weights import VersionWeights


class Doubler:
    """Records the inputs that it gets; doubles them."""

    def __init__(self):
        self.seen = []
        self.scale = 2.0

    def run(self, inputs):
        self.seen.append(inputs[0].copy())
        return inputs[0] * self.scale

    def load(self, weights):
        self.scale = float(weights["scale"])


def make(engine, **settings):
    x = np.zeros((1, 2), np.float64)
    spec = nested.spec(x[0])
    current = VersionWeights(0, {"scale": np.float64(2.0)})
    return BatchExecutor(engine, Signature((spec,), spec), ModelConfig(**settings), current)


def rows(n, start=0.0):
    return np.arange(start, start + 2 * n).reshape(n, 2)


def request(n, start=0.0):
    return BatchRequest([rows(n, start)], n, True)


def test_mixed_requests_get_their_own_rows():
    engine = Doubler()
    single = BatchRequest([np.array([50.0, 51.0])])
    answers = make(engine).run([request(2), single, request(3, 70.0)])
    np.testing.assert_array_equal(answers[0].outputs, rows(2) * 2)
    np.testing.assert_array_equal(answers[1].outputs, [100.0, 102.0])
    np.testing.assert_array_equal(answers[2].outputs, rows(3, 70.0) * 2)


@pytest.mark.parametrize(
    ("rows", "pad_to", "padded"),
    [
        (1, (), 1),
        (3, (), 3),
        (3, (4, 8), 4),
        (4, (4, 8), 4),
        (5, (4, 8), 8),
        (9, (4, 8), 9),
        (9, (4, 12), 12),
    ],
)
def test_padding_repeats_the_first_row(rows, pad_to, padded):
    engine = Doubler()
    answer = make(engine, max_batch_size=12, pad_to=pad_to).run([request(rows)])[0]
    assert engine.seen[0].shape == (padded, 2)
    np.testing.assert_array_equal(engine.seen[0][rows:], np.tile([0.0, 1.0], (padded - rows, 1)))
    assert answer.outputs.shape == (rows, 2)


def test_a_large_request_is_split_and_joined_by_one_version():
    engine = Doubler()
    answer = make(engine, max_batch_size=4).run([request(10)])[0]
    assert [len(x) for x in engine.seen] == [4, 4, 2]
    np.testing.assert_array_equal(answer.outputs, rows(10) * 2)


def test_new_weights_take_effect_with_the_next_batch():
    executor = make(Doubler())
    executor.current = VersionWeights(1, {"scale": np.float64(3.0)})
    executor.current = VersionWeights(2, {"scale": np.float64(5.0)})
    answer = executor.run([request(1)])[0]
    assert answer.version == 2
    np.testing.assert_array_equal(answer.outputs, rows(1) * 5)


def test_a_batch_that_runs_after_its_clone_was_closed_fails():
    executor = make(Doubler())
    clone = executor.clone(executor.current)
    np.testing.assert_array_equal(clone.run([request(1)])[0].outputs, rows(1) * 2)
    clone.close()
    with pytest.raises(ClosedError, match="the model was closed before this batch ran"):
        clone.run([request(1)])
    np.testing.assert_array_equal(executor.run([request(1)])[0].outputs, rows(1) * 2)


@pytest.mark.parametrize(
    ("output", "message"),
    [
        (np.zeros((1, 2)), r"outputs: expected float64 \(3, 2\), got float64 \(1, 2\)"),
        (np.zeros((3, 2), np.int32), r"outputs: expected float64 \(3, 2\), got int32"),
        (np.zeros((3, 4)), r"got float64 \(3, 4\)"),
    ],
)
def test_outputs_are_checked(output, message):
    engine = Doubler()
    engine.run = lambda inputs: output
    with pytest.raises(SpecError, match=message):
        make(engine).run([request(3)])


def test_another_output_structure_is_refused(policy, observations):
    engine = TorchEngine(policy)
    signature = Signature.probe(engine.run, observations(2))
    executor = BatchExecutor(engine, signature, ModelConfig(), VersionWeights(0, engine.weights()))
    engine.run = lambda inputs: {"logits": np.zeros(3)}
    leaves, _ = signature.input_tree.batch(observations(2))
    with pytest.raises(SpecError, match=r"outputs: expected the leaves .*, got another structure"):
        executor.run([BatchRequest(leaves, 2, True)])


def test_batches_are_recorded():
    metrics.drain()
    make(Doubler()).run([request(3)])
    values = {sample.name: sample.value for sample in metrics.drain()}
    assert values["model/batch_rows"] == 3
    assert values["model/forward_s"] > 0


def networks():
    torch.manual_seed(0)
    for hidden, outputs in ((64, 1), (64, 2), (100, 18), (256, 1)):
        yield (
            torch.nn.Sequential(
                torch.nn.Linear(4, hidden),
                torch.nn.Tanh(),
                torch.nn.Linear(hidden, hidden),
                torch.nn.Tanh(),
                torch.nn.Linear(hidden, outputs),
            ),
            (4,),
        )
    yield (
        torch.nn.Sequential(
            torch.nn.Conv2d(1, 16, 8, 4), torch.nn.Flatten(), torch.nn.Linear(400, 1)
        ),
        (1, 24, 24),
    )


@pytest.mark.isa
@pytest.mark.parametrize(("network", "shape"), list(networks()))
def test_a_row_keeps_its_result_in_its_place(network, shape):
    """To the last bit, whatever the rows beside it hold: it is what --seed relies on."""
    engine = TorchEngine(network)
    rng = np.random.default_rng(0)
    for n in (1, 2, 3, 5, 6, 7, 8, 9, 16, 17, 33):
        x = rng.standard_normal((n, *shape)).astype(np.float32)
        signature = Signature.probe(engine.run, (x,))
        executor = BatchExecutor(
            engine, signature, ModelConfig(), VersionWeights(0, engine.weights())
        )
        expected = executor.run([BatchRequest([row]) for row in x])
        for _ in range(4):
            kept = rng.random(n) < 0.5
            others = rng.standard_normal((n, *shape)).astype(np.float32)
            rows = np.where(kept.reshape(n, *[1] * len(shape)), x, others)
            answers = executor.run([BatchRequest([row]) for row in rows])
            together = executor.run([BatchRequest([rows], n, True)])[0].outputs
            for i, answer in enumerate(answers):
                np.testing.assert_array_equal(answer.outputs, together[i])
                if kept[i]:
                    np.testing.assert_array_equal(answer.outputs, expected[i].outputs)


class Picky(Doubler):
    """Refuses batches with a negative number; answers 100 with NaN."""

    def run(self, inputs):
        if (inputs[0] < 0).any():
            raise IndexError("index out of range")
        outputs = super().run(inputs)
        outputs[inputs[0] == 100.0] = np.nan
        return outputs


def test_a_bad_request_fails_alone():
    executor = make(Picky())
    good, bad, row = request(2), request(1, -5.0), BatchRequest([np.array([50.0, 51.0])])
    answers = executor.run([good, bad, row])
    np.testing.assert_array_equal(answers[0].outputs, rows(2) * 2)
    assert isinstance(answers[1], IndexError)
    np.testing.assert_array_equal(answers[2].outputs, [100.0, 102.0])
    with pytest.raises(IndexError):
        executor.run([bad])


def test_outputs_that_are_not_finite_are_refused_on_request():
    good, bad = request(2), request(3, 98.0)
    assert np.isnan(make(Picky()).run([good, bad])[1].outputs).any()
    answers = make(Picky(), reject_non_finite=True).run([good, bad, good])
    assert isinstance(answers[1], NonFiniteError)
    assert str(answers[1]) == "outputs: expected finite values, got NaN or inf"
    for index in (0, 2):
        np.testing.assert_array_equal(answers[index].outputs, rows(2) * 2)
