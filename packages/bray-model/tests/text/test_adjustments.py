"""Penalties and biases: the distribution sampled from is that of the adjusted logits."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from bray_core.errors import ConfigError, SpecError
from bray_model.text.requests import Sampling, TextRequest

PROMPT = tuple(range(5, 13))
ADJUSTED = Sampling(
    max_tokens=30,
    temperature=0.8,
    frequency_penalty=0.7,
    presence_penalty=-0.4,
    logit_bias=((6, 2.5), (9, -100.0)),
    ignore_eos=True,
)


def wanted(module, completion, sampling):
    """The adjusted and the plain log-probabilities by one whole pass and OpenAI's formula."""
    ids = torch.tensor([[*completion.prompt_ids, *completion.ids.tolist()]])
    with torch.no_grad():
        logits = module(ids).logits[0, len(completion.prompt_ids) - 1 : -1].double()
    adjusted, plain = [], []
    for at, token in enumerate(completion.ids.tolist()):
        row = logits[at].clone()
        plain.append(float(row.log_softmax(-1)[token]))
        for other in range(len(row)):
            count = completion.ids[:at].tolist().count(other)
            row[other] -= sampling.frequency_penalty * count
            row[other] -= sampling.presence_penalty * (count > 0)
        for other, bias in sampling.logit_bias:
            row[other] += bias
        adjusted.append(float((row / sampling.temperature).log_softmax(-1)[token]))
    return adjusted, plain


@pytest.mark.parametrize("more", [{}, {"temperature": 1.0}, {"temperature": 1.0, "top_k": 48}])
def test_logprobs_are_of_the_adjusted_distribution(make, more):
    sampling = replace(ADJUSTED, **more)
    model = make(max_rows=3)
    module = model.new_module()
    asked = [TextRequest(PROMPT, sampling, seed=seed, group="g") for seed in range(5)]
    for one in model.generate(asked):
        adjusted, plain = wanted(module, one, sampling)
        np.testing.assert_allclose(one.logprobs, adjusted, atol=2e-5)
        np.testing.assert_allclose(one.raw_logprobs, plain, atol=2e-5)
        assert 9 not in one.ids


def test_likeliest_tokens_are_those_of_the_adjusted_logits(make):
    model = make()
    greedy = Sampling(max_tokens=25, temperature=0.0, ignore_eos=True)
    plain, once, forced = model.generate(
        [
            TextRequest(PROMPT, greedy),
            TextRequest(PROMPT, replace(greedy, presence_penalty=2.0, frequency_penalty=2.0)),
            TextRequest(PROMPT, replace(greedy, logit_bias=((7, 100.0),))),
        ]
    )
    assert set(forced.ids.tolist()) == {7}
    assert len(set(once.ids.tolist())) > len(set(plain.ids.tolist()))
    _, raw = wanted(
        model.new_module(), forced, replace(greedy, temperature=1.0, logit_bias=((7, 100.0),))
    )
    np.testing.assert_allclose(forced.raw_logprobs, raw, atol=2e-5)


def test_other_rows_of_a_batch_are_left_alone(make):
    model = make(max_rows=4)
    plain = [TextRequest(PROMPT, Sampling(max_tokens=20), seed=seed) for seed in range(3)]
    alone = [one.ids.tolist() for one in model.generate(plain)]
    mixed = model.generate([plain[0], TextRequest(PROMPT, ADJUSTED, seed=9), *plain[1:]])
    assert [mixed[at].ids.tolist() for at in (0, 2, 3)] == alone


def test_what_is_out_of_range_is_refused(make):
    for field, value in [
        ("frequency_penalty", 2.1),
        ("presence_penalty", float("nan")),
        ("logit_bias", ((1, 101.0),)),
        ("logit_bias", ((1, float("nan")),)),
        ("logit_bias", ((-1, 1.0),)),
        ("logit_bias", ((1, 1.0), (1, 2.0))),
        ("logit_bias", tuple((at, 1.0) for at in range(1025))),
    ]:
        with pytest.raises(ConfigError, match=field):
            Sampling(**{field: value})
    model = make()
    with pytest.raises(SpecError, match="logit_bias: token 48 is beyond the vocabulary of 48"):
        model.generate([TextRequest(PROMPT, Sampling(logit_bias=((48, 1.0),)))])
