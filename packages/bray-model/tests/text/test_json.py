"""JSON objects by constrained sampling: what is whole parses, whatever the weights say."""

import json
import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from bray_core.errors import ConfigError, SpecError
from bray_model.text.requests import Sampling, TextRequest
from bray_model.text.sampling.json_grammar import BEGIN, JsonGrammar, is_complete
from bray_model.text.sampling.json_tokens import JsonConstraint, JsonTokens
from bray_model.text.torch_text_engine import TorchTextEngine

GRAMMAR = JsonGrammar(frozenset(range(256)))
LEAVES = (
    st.none()
    | st.booleans()
    | st.integers(-(10**15) + 1, 10**15 - 1)
    | st.floats(-9e99, 9e99).map(lambda one: round(one, 3))  # exponents of two digits
    | st.text(st.characters(exclude_categories=["Cs"]), max_size=6)
)
OBJECTS = st.dictionaries(
    st.text(max_size=4),
    st.recursive(
        LEAVES,
        lambda one: st.lists(one, max_size=3) | st.dictionaries(st.text(max_size=4), one),
        max_leaves=8,
    ),
    max_size=4,
)


def is_taken(text: bytes) -> bool:
    state = BEGIN
    for byte in text:
        if state is not None:
            state = GRAMMAR.after(state, byte)
    return state is not None and is_complete(state)


@given(OBJECTS, st.booleans(), st.sampled_from([None, 2]))
def test_what_json_writes_is_taken(content, escapes, indent):
    text = json.dumps(content, ensure_ascii=False, indent=indent)
    if any(len(one.strip("-")) > 15 for one in text.replace(".", " ").split()):
        return  # more digits than the grammar writes
    assert is_taken(text.encode())


@pytest.mark.parametrize(
    "text",
    [
        "[]", "1", '"a"', "{", "{}}", '{"a"}', '{"a":}', '{"a":1,}', '{"a":01}', '{"a":1.}',
        '{"a":.5}', '{"a":+1}', '{"a":1e}', '{"a":-}', '{"a":[1,]}', '{"a":[1}', '{a:1}',
        "{'a':1}", '{"a":tru}', '{"a":True}', '{"a":NaN}', '{"a":"\n"}', '{"a":"\\x"}',
        '{"a":"\\ud800"}', '{"a":"\\u12g4"}', '{"a" 1}', '{"a":1 2}', "{,}", '{"a":1e400}',
        '{"a":' + "9" * 5000 + "}", '{"a":' + "[" * 99 + "]" * 99 + "}", " " * 99 + "{}",
    ],
)  # fmt: skip
def test_what_some_parser_would_refuse_is_not_taken(text):
    assert not is_taken(text.encode())


@pytest.mark.parametrize("text", [b"\xff", b"\xc0\x80", b"\xed\xa0\x80", b"\xf5\x80\x80\x80"])
def test_bytes_that_are_no_text_are_not_taken(text):
    assert not is_taken(b'{"a":"' + text + b'"}')


def random_bytes_model(make, llama, byte_tokenizer, **settings):
    wide = llama(vocab_size=258, max_position_embeddings=400, initializer_range=0.02)
    return make(wide, byte_tokenizer, **settings)


def check_json(completions):
    """Check what is whole, and return how much that is."""
    whole = [one for one in completions if one.finish_reason == "stop"]
    for one in whole:
        assert isinstance(json.loads(one.text), dict), one.text
        assert one.ids[-1] == 1, "the end-of-text token is sampled, and nothing else"
        assert one.logprobs[-1] == 0.0
        assert one.raw_logprobs[-1] < -1
        assert np.isfinite(one.logprobs).all()
        assert np.isfinite(one.raw_logprobs).all()
    for one in set(completions) - set(whole):
        assert one.finish_reason == "length"
        with pytest.raises(ValueError):
            json.loads(one.text)
        assert 1 not in one.ids
    return len(whole)


@pytest.mark.parametrize("changes", [{}, {"top_k": 9}, {"top_p": 0.5}, {"temperature": 0.2}])
def test_each_completion_that_ends_is_a_json_object(make, llama, byte_tokenizer, changes):
    model = random_bytes_model(make, llama, byte_tokenizer)
    # Closing is made likelier: nearly even weights would go on for thousands of tokens.
    bias = tuple((model.encode(one)[0], 4.0) for one in '{}":]')
    sampling = Sampling(max_tokens=350, response_format="json_object", logit_bias=bias, **changes)
    requests = [TextRequest((5,), sampling, group="g", seed=seed) for seed in range(60)]
    assert check_json(model.generate(requests)) >= 30


def test_a_vocabulary_of_several_characters_a_token_is_held_to_it_too(make, llama):
    tokenizer = byte_pair_tokenizer_of_json()
    size = len(tokenizer)
    model = make(llama(size, max_position_embeddings=400, initializer_range=0.02), tokenizer)
    sampling = Sampling(max_tokens=300, response_format="json_object")
    requests = [TextRequest((5,), sampling, seed=seed) for seed in range(60)]
    assert check_json(model.generate(requests)) >= 30


def byte_pair_tokenizer_of_json():
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=500,
        special_tokens=["<p>", "<e>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    texts = [json.dumps({"naïve": [{"a": [[n, "日本"]]}, None, {"b": {}}]}) for n in range(20)]
    texts += [json.dumps({"k": [{"x": "ü日"}]}, ensure_ascii=False, indent=1)] * 20
    tokenizer.train_from_iterator([text + "}]}" for text in texts], trainer)
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<e>", pad_token="<p>")


def test_characters_are_enough(make, llama, character_tokenizer):
    tokenizer = character_tokenizer('{}": ,abt日é')  # no brackets, digits or escapes
    model = make(llama(len(tokenizer), initializer_range=0.02), tokenizer)
    sampling = Sampling(max_tokens=60, response_format="json_object")
    requests = [TextRequest((5,), sampling, seed=seed) for seed in range(40)]
    assert check_json(model.generate(requests)) >= 30


def test_log_probabilities_are_those_of_the_distribution_sampled_from(make, llama, byte_tokenizer):
    model = random_bytes_model(make, llama, byte_tokenizer)
    sampling = Sampling(max_tokens=40, response_format="json_object")
    [one] = model.generate([TextRequest((5, 6), sampling, seed=3)])
    module = model.new_module()
    constraint = JsonConstraint(model._text.json_tokens(model.eos_ids))
    ids = [*one.prompt_ids, *one.ids.tolist()]
    with torch.no_grad():
        logits = module(torch.tensor([ids])).logits[0, 1:-1]
    raw = logits.log_softmax(-1)
    for at, token in enumerate(one.ids.tolist()):
        allowed = torch.from_numpy(constraint.allowed(one.ids[:at]))
        held = logits[at].masked_fill(~allowed, -math.inf).log_softmax(-1)
        assert abs(float(held[token]) - one.logprobs[at]) < 1e-5
        assert abs(float(raw[at, token]) - one.raw_logprobs[at]) < 1e-5


def test_the_batch_a_preemption_and_new_weights_change_nothing(make, llama, byte_tokenizer):
    sampling = Sampling(max_tokens=80, response_format="json_object")
    requests = [TextRequest((5, 6), sampling, seed=seed) for seed in range(6)]
    plain = [TextRequest((5, 6), Sampling(max_tokens=80, ignore_eos=True, seed=2))] * 4
    alone = random_bytes_model(make, llama, byte_tokenizer, max_rows=1)
    expected = [one.ids.tolist() for one in alone.generate(requests)]
    tight = random_bytes_model(make, llama, byte_tokenizer, max_rows=10, cache_bytes=65_536)
    found = tight.generate([*requests, *plain])
    assert [one.ids.tolist() for one in found[:6]] == expected
    assert tight.figures().preempted
    again = random_bytes_model(make, llama, byte_tokenizer, in_flight="restart")
    tickets = again.submit(requests)
    for _ in range(5):
        with again.engine._step_lock:
            again.engine._step()
    assert again.figures().num_running
    again.publish({name: value.clone() for name, value in again.weights().items()})
    assert [one.ids.tolist() for one in again.collect(tickets)] == expected


def test_a_mask_is_that_of_its_state_however_deep(make, llama):
    """Masks are shared between states; one that is computed anew says the same."""
    tokenizer = byte_pair_tokenizer_of_json()
    model = make(llama(len(tokenizer)), tokenizer)
    tokens = model._text.json_tokens(model.eos_ids)
    fresh = JsonTokens(tokens._spelled, model.eos_ids)
    fresh._plain[:], fresh._other = False, fresh._root  # looks at each token within strings, too
    text = '{"a":[[{"b":[[[[{"c":{"d":[1,{"e":[]}]}}]]]]}],2.5e-1,true],"é":{}}'
    state = BEGIN
    for byte in text.encode():
        assert (tokens.mask(state) == fresh._allowed(state)).all(), state
        state = GRAMMAR.after(state, byte)
    assert is_complete(state)


def test_what_cannot_be_held_is_refused_in_words(make, llama, character_tokenizer):
    with pytest.raises(ConfigError, match="JSON ends by itself: leave ignore_eos out"):
        Sampling(response_format="json_object", ignore_eos=True)
    with pytest.raises(ConfigError, match="response_format"):
        Sampling(response_format="json")
    model = make()
    request = TextRequest((5,), Sampling(response_format="json_object"))
    with pytest.raises(
        SpecError, match=r'JSON needs tokens for \{ \} " :, which the tokenizer lacks'
    ):
        model.check(request)
    assert isinstance(model.engine, TorchTextEngine)
    with pytest.raises(SpecError, match="this engine does not serve 'json_object' by itself"):
        model.engine.submit([request])
