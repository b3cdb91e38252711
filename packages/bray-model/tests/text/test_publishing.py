import asyncio

import numpy as np
import pytest
import torch

from bray_core.errors import SpecError
from bray_model.text.requests import Sampling, TextRequest

LONG = Sampling(max_tokens=20, seed=5, ignore_eos=True)


def step(model, count: int = 1):
    for _ in range(count):
        model.engine._between_steps(model.engine._decoder.step)


def other_weights(make):
    return make(seed=9).weights()


def alone(module, ids, position):
    """Log-probabilities after the first `position` tokens, `[V]`, by one forward."""
    with torch.no_grad():
        return module(torch.tensor([ids[:position]])).logits[0, -1].log_softmax(-1)


def test_new_weights_continue_on_the_old_keys_and_values(make):
    model, new = make(), other_weights(make)
    old_module = model.new_module()
    [ticket] = model.submit([TextRequest((5, 6, 7), LONG)])
    step(model, 4)
    assert model.publish(new) == model.version == 1
    [one] = model.collect([ticket])
    assert one.versions.tolist() == [0] * 5 + [1] * 15
    ids = [*one.prompt_ids, *one.ids.tolist()]
    for at in range(5):
        expected = alone(old_module, ids, 3 + at)[ids[3 + at]]
        assert abs(one.logprobs[at] - float(expected)) < 1e-5
    # The first token of the new weights: the old keys and values, and one token of the new ones.
    from transformers import DynamicCache

    new_module, cache = model.new_module(), DynamicCache()
    with torch.no_grad():
        old_module(torch.tensor([ids[:7]]), past_key_values=cache)
        logits = new_module(torch.tensor([ids[7:8]]), past_key_values=cache).logits[0, -1]
    assert abs(one.logprobs[5] - float(logits.log_softmax(-1)[ids[8]])) < 1e-5


def test_new_weights_may_restart_what_is_under_way(make):
    model, new = make(in_flight="restart"), other_weights(make)
    [ticket] = model.submit([TextRequest((5, 6, 7), LONG)])
    step(model, 4)
    model.publish(new)
    [one] = model.collect([ticket])
    assert one.versions.tolist() == [1] * 20
    [fresh] = model.generate([TextRequest((5, 6, 7), LONG)])
    assert one.ids.tolist() == fresh.ids.tolist()
    assert model.figures().restarted == 1


def test_new_weights_may_wait_for_what_is_under_way(make):
    model, new = make(in_flight="finish", max_rows=2), other_weights(make)
    [ticket] = model.submit([TextRequest((5, 6, 7), LONG)])
    step(model, 4)
    model.publish(new)
    assert model.version == 0
    [later] = model.submit([TextRequest((5, 6, 7), LONG)])
    one, two = model.collect([ticket, later])
    assert one.versions.tolist() == [0] * 20
    assert two.versions.tolist() == [1] * 20
    assert model.version == 1


def test_a_group_does_not_share_what_other_weights_computed(make):
    model, new = make(max_rows=4), other_weights(make)
    request = TextRequest((5, 6, 7, 8), LONG, group="g")
    [first] = model.submit([request])
    step(model, 3)
    model.publish(new)
    [second] = model.generate([request])
    assert second.num_shared == 0
    [alone] = model.generate([TextRequest((5, 6, 7, 8), LONG)])
    assert second.ids.tolist() == alone.ids.tolist()
    np.testing.assert_allclose(second.logprobs, alone.logprobs, atol=1e-5)
    model.collect([first])


def test_weights_that_do_not_fit_are_refused_and_the_old_ones_stay(make):
    model = make()
    before = {name: tensor.clone() for name, tensor in model.weights().items()}
    good = {name: tensor.clone() + 1 for name, tensor in before.items()}
    name = "model.layers.0.mlp.up_proj.weight"
    bad = good[name].clone()
    bad[3, 4] = torch.nan
    for weights, words in (
        ({**good, name: bad}, rf"{name}: 1 of {bad.numel()} numbers are not finite"),
        ({**good, name: bad[:5]}, rf"{name}: expected shape \(48, 32\), got \(5, 32\)"),
        ({**good, "nonsense": bad}, "unexpected nonsense"),
        ({key: value for key, value in good.items() if key != name}, f"missing {name}"),
        ({**good, name: [1.0]}, f"{name}: expected a tensor, got list"),
        (7, "expected name → tensor, got int"),
    ):
        with pytest.raises(SpecError, match=words):
            model.publish(weights)
        assert all(torch.equal(before[key], value) for key, value in model.weights().items())
    assert model.version == 0
    assert model.publish({key: value.numpy() for key, value in good.items()}) == 1
    assert all(torch.equal(good[key], value) for key, value in model.weights().items())
    assert model.publish(good, version=7) == 7
    with pytest.raises(SpecError, match="7 is not larger than 7"):
        model.publish(good, version=7)


def test_tied_weights_may_be_given_once(make, llama):
    model = make(llama(tie_word_embeddings=True))
    weights = {name: tensor + 0.5 for name, tensor in model.weights().items()}
    del weights["lm_head.weight"]
    model.publish(weights)
    embedding = weights["model.embed_tokens.weight"]
    assert torch.equal(model.weights()["lm_head.weight"], embedding)
    assert torch.equal(model.new_module().lm_head.weight, embedding)


async def test_a_request_that_came_as_weights_were_published_is_answered(make):
    model, new = make(), other_weights(make)
    engine = model.engine
    engine.start()
    await asyncio.sleep(0.1)  # its thread sleeps
    with engine._changed:  # it is woken by the request, and finds that the publisher took it along
        [ticket] = engine.submit([TextRequest((5, 6, 7), LONG)])
        engine._run_errands()
    model.publish(new)
    [one] = model.collect([ticket], timeout_s=20)
    assert len(one.ids) == 20
