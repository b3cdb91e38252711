import numpy as np
import pytest
import torch
from transformers import (
    LogitsProcessorList,
    MinPLogitsWarper,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from bray_model.text.sampling.sampler import SamplingRows, sample
from bray_model.text.sampling.uniforms import stream_seed, uniforms

SETTINGS = [
    {},
    {"temperature": 0.5},
    {"temperature": 1.7, "top_k": 5},
    {"top_p": 0.6},
    {"min_p": 0.2},
    {"temperature": 0.8, "top_k": 12, "top_p": 0.9, "min_p": 0.05},
    {"temperature": 0.0},
]


def rows(settings: list[dict]) -> SamplingRows:
    def column(name, default):
        return np.array([one.get(name, default) for one in settings], type(default))

    return SamplingRows(
        column("temperature", 1.0), column("top_k", 0), column("top_p", 1.0), column("min_p", 0.0)
    )


def distribution_by_transformers(logits, temperature=1.0, top_k=0, top_p=1.0, min_p=0.0):
    """Log-probabilities `[V]` by the processors of transformers."""
    processors = LogitsProcessorList([TemperatureLogitsWarper(temperature)])
    if top_k:
        processors.append(TopKLogitsWarper(top_k))
    if top_p < 1:
        processors.append(TopPLogitsWarper(top_p))
    if min_p:
        processors.append(MinPLogitsWarper(min_p))
    return processors(None, logits[None].clone())[0].double().log_softmax(-1)


@pytest.mark.parametrize("settings", SETTINGS)
def test_frequencies_and_logprobs_are_those_of_transformers_processors(settings):
    logits = torch.randn(40, generator=torch.Generator().manual_seed(3)) * 2
    count = 20_000
    u = (np.arange(count) + 0.5) / count  # evenly spread: frequencies are exact to 1/count
    sampled = sample(logits.expand(count, -1), rows([settings] * count), u)
    raw = logits.double().log_softmax(-1).numpy()
    np.testing.assert_allclose(sampled.raw_logprobs, raw[sampled.ids], atol=1e-6)
    if settings.get("temperature") == 0:
        assert set(sampled.ids) == {int(logits.argmax())}
        assert not sampled.logprobs.any()
        return
    expected = distribution_by_transformers(logits, **settings).numpy()
    frequencies = np.bincount(sampled.ids, minlength=40) / count
    np.testing.assert_allclose(frequencies, np.exp(expected), atol=1.01 / count)
    np.testing.assert_allclose(sampled.logprobs, expected[sampled.ids], atol=1e-6)


def test_rows_of_one_batch_are_sampled_each_in_its_own_way():
    logits = torch.randn(len(SETTINGS), 40, generator=torch.Generator().manual_seed(5)) * 2
    u = np.linspace(0.05, 0.95, len(SETTINGS))
    together = sample(logits, rows(SETTINGS), u)
    for at, settings in enumerate(SETTINGS):
        one = sample(logits[at : at + 1], rows([settings]), u[at : at + 1])
        for column, single in zip(together, one, strict=True):
            np.testing.assert_allclose(column[at], single[0], atol=1e-6)


@pytest.mark.parametrize("width", [256, 257, 1000])
def test_large_vocabularies_are_sampled_exactly_too(width):
    logits = torch.randn(width, generator=torch.Generator().manual_seed(7)) * 3
    logits[5:300:2] = -torch.inf
    count = 4_000
    sampled = sample(logits.expand(count, -1), rows([{}] * count), (np.arange(count) + 0.5) / count)
    expected = logits.double().log_softmax(-1).numpy()
    frequencies = np.bincount(sampled.ids, minlength=width) / count
    np.testing.assert_allclose(frequencies, np.exp(expected), atol=1.01 / count)
    np.testing.assert_allclose(sampled.logprobs, expected[sampled.ids], atol=2e-6)
    edges = sample(logits.expand(2, -1), rows([{}] * 2), np.array([0.0, 1 - 2.0**-53]))
    assert np.isfinite(edges.logprobs).all()


def test_the_ends_of_the_unit_interval_never_give_an_impossible_token():
    logits = torch.tensor([[-torch.inf, 1.0, 2.0, -torch.inf]]).expand(2, -1)
    sampled = sample(logits, rows([{}, {}]), np.array([0.0, 1 - 2.0**-53]))
    assert sampled.ids.tolist() == [1, 2]


def test_streams_are_even_and_unlike_each_other():
    seeds = np.array([stream_seed(seed) for seed in range(2000)], np.uint64)
    numbers = np.stack([uniforms(seeds, np.full(2000, at)) for at in range(50)])
    assert 0 <= numbers.min() < 1e-3 < 1 - 1e-3 < numbers.max() < 1
    counts = np.histogram(numbers, 50, (0, 1))[0] / numbers.size
    np.testing.assert_allclose(counts, 0.02, atol=0.0015)
    assert abs(np.corrcoef(numbers[:, :500])[~np.eye(50, dtype=bool)]).max() < 0.25
    assert abs(np.corrcoef(numbers.T[:200])[~np.eye(200, dtype=bool)]).mean() < 0.15
    assert stream_seed(3, 1) != stream_seed(3, 2) != stream_seed(4, 2)
