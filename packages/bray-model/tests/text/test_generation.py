import threading
from dataclasses import replace

import numpy as np
import pytest
import torch
import transformers

from bray_core.errors import CapacityError, ClosedError, ConfigError, DeadlineError, SpecError
from bray_model.text.requests import PromptTooLongError, Sampling, TextRequest
from bray_model.text.row_cache import RowCache

GREEDY = Sampling(temperature=0.0, max_tokens=20)
SMALL = {
    "vocab_size": 48,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 96,
    "initializer_range": 0.3,
    "bos_token_id": None,
    "eos_token_id": 1,
    "pad_token_id": 0,
}
ARCHITECTURES = {
    "llama": lambda: transformers.LlamaConfig(**SMALL),
    "gpt2": lambda: transformers.GPT2Config(
        vocab_size=48, n_embd=32, n_layer=2, n_head=4, n_positions=96, initializer_range=0.3,
        bos_token_id=None, eos_token_id=1,
    ),
    "qwen2": lambda: transformers.Qwen2Config(**SMALL),
    "qwen2 with experts": lambda: transformers.Qwen2MoeConfig(
        **SMALL, moe_intermediate_size=16, shared_expert_intermediate_size=48,
        num_experts=4, num_experts_per_tok=2,
    ),
    "qwen3": lambda: transformers.Qwen3Config(**SMALL, head_dim=16),
    "mistral": lambda: transformers.MistralConfig(**SMALL, sliding_window=8),
    "gemma2": lambda: transformers.Gemma2Config(**SMALL, head_dim=8, sliding_window=8),
    "gemma3": lambda: transformers.Gemma3TextConfig(
        **SMALL, head_dim=8, sliding_window=8,
        layer_types=["sliding_attention", "full_attention"],
    ),
    "olmo": lambda: transformers.OlmoConfig(**SMALL),  # its norms have no weights
}  # fmt: skip
SIZES = {**SMALL, "head_dim": 8, "layer_types": ["linear_attention", "full_attention"]}
ROWS_ALONE = {
    "a state alone": lambda: transformers.MambaConfig(
        vocab_size=48, hidden_size=16, state_size=4, num_hidden_layers=2, initializer_range=0.3,
        bos_token_id=None, eos_token_id=1, pad_token_id=0,
    ),
    "a state of another name": lambda: transformers.RwkvConfig(
        vocab_size=48, hidden_size=16, num_hidden_layers=2, context_length=96,
        bos_token_id=None, eos_token_id=1,
    ),
    "a state, and attention": lambda: transformers.Qwen3NextConfig(
        **SIZES, linear_num_key_heads=2, linear_num_value_heads=2, linear_key_head_dim=8,
        linear_value_head_dim=8, num_experts=4, num_experts_per_tok=2, moe_intermediate_size=16,
        shared_expert_intermediate_size=16,
    ),
    "a mask of its own": lambda: transformers.BloomConfig(
        vocab_size=48, hidden_size=32, n_layer=2, n_head=4, initializer_range=0.3,
        bos_token_id=None, eos_token_id=1, pad_token_id=0,
    ),
    "a window of its own": lambda: transformers.GPTNeoConfig(
        vocab_size=48, hidden_size=16, num_layers=2, num_heads=2, window_size=4,
        attention_types=[[["global", "local"], 1]], max_position_embeddings=64,
        initializer_range=0.3, bos_token_id=None, eos_token_id=1,
    ),
    "nothing that it keeps": lambda: transformers.OpenAIGPTConfig(
        vocab_size=48, n_embd=16, n_layer=2, n_head=2, n_positions=64, initializer_range=0.3,
        bos_token_id=None, eos_token_id=1,
    ),
}  # fmt: skip
"""What keeps rows from being computed together → an architecture that has it."""


def requests(count: int, sampling: Sampling, vocab_size: int = 48, seed: int = 0):
    """Prompts of 1 to 24 tokens, each to be continued by another number of tokens."""
    rng = np.random.default_rng(seed)
    return [
        TextRequest(
            tuple(rng.integers(2, vocab_size, rng.integers(1, 25)).tolist()),
            replace(sampling, max_tokens=int(rng.integers(1, sampling.max_tokens + 1))),
        )
        for _ in range(count)
    ]


def alone(module, completion, temperature=1.0):
    """Log-probabilities of a completion's tokens by one forward over the whole text, `[T]`."""
    ids = torch.tensor([[*completion.prompt_ids, *completion.ids.tolist()]])
    with torch.no_grad():
        logits = module(ids).logits[0, len(completion.prompt_ids) - 1 : -1].double()
    rows = (logits / temperature).log_softmax(-1)
    return rows.gather(-1, torch.from_numpy(completion.ids)[:, None])[:, 0].numpy()


@pytest.mark.parametrize("name", [*ARCHITECTURES, *ROWS_ALONE])
def test_greedy_tokens_are_those_of_generate(make, name):
    model = make((ARCHITECTURES | ROWS_ALONE)[name](), max_rows=3)
    module = model.new_module()
    asked = requests(7, GREEDY)
    for request, completion in zip(asked, model.generate(asked), strict=True):
        with torch.no_grad():
            expected = module.generate(
                torch.tensor([request.prompt_ids]),
                max_new_tokens=request.sampling.max_tokens,
                do_sample=False,
                pad_token_id=0,
            )[0, len(request.prompt_ids) :].tolist()
        assert completion.ids.tolist() == expected
        ended = expected[-1] == 1
        assert completion.finish_reason == ("stop" if ended else "length")


@pytest.mark.parametrize("name", ["llama", "gpt2", "mistral", *ROWS_ALONE])
def test_logprobs_are_those_of_a_whole_forward_however_the_batch_changes(make, name):
    model = make((ARCHITECTURES | ROWS_ALONE)[name](), max_rows=4, prefill_tokens=16)
    module = model.new_module()
    asked = requests(12, Sampling(max_tokens=30, temperature=0.7))
    # A step of a state is another formula than all of them at once, and rounds otherwise.
    allowed = 1e-5 if name in ARCHITECTURES else 2e-4
    for at, completion in enumerate(model.generate([*asked, asked[0]])):
        assert len(completion.ids) == len(completion.logprobs) == len(completion.versions)
        np.testing.assert_allclose(completion.raw_logprobs, alone(module, completion), atol=allowed)
        np.testing.assert_allclose(
            completion.logprobs, alone(module, completion, 0.7), atol=2 * allowed, err_msg=str(at)
        )


def test_a_group_computes_its_prompt_once(make):
    model = make(max_rows=5)
    prompt = tuple(range(5, 25))
    asked = [TextRequest(prompt, Sampling(max_tokens=8, ignore_eos=True), group="g")] * 12
    completions = model.generate(asked)
    figures = model.figures()
    assert figures.prompt_tokens == len(prompt)
    assert figures.shared_tokens == 11 * len(prompt)
    assert len({tuple(one.ids.tolist()) for one in completions}) > 6
    module = model.new_module()
    for one in completions:
        np.testing.assert_allclose(one.logprobs, alone(module, one), atol=1e-5)


@pytest.mark.parametrize("name", ROWS_ALONE)
def test_rows_alone_in_a_group_share_nothing_and_compute_the_same(make, name):
    model = make(ROWS_ALONE[name](), max_rows=3)
    asked = [TextRequest(tuple(range(5, 25)), Sampling(max_tokens=8), group="g")] * 7
    module = model.new_module()
    for one in model.generate(asked):
        np.testing.assert_allclose(one.logprobs, alone(module, one), atol=2e-4)
    assert model.figures().shared_tokens == 0


@pytest.mark.parametrize("name", ROWS_ALONE)
def test_rows_alone_take_new_weights(make, name):
    model = make(ROWS_ALONE[name]())
    other = make(ROWS_ALONE[name](), seed=2)
    model.publish(other.weights())
    request = TextRequest((5, 9, 7), GREEDY)
    assert [one.ids.tolist() for one in model.generate([request])] == [
        one.ids.tolist() for one in other.generate([request])
    ]


def test_states_of_rows_have_a_bound(make):
    asked = [
        TextRequest((3 + at, 9, 5, 7), Sampling(max_tokens=36, seed=at, ignore_eos=True))
        for at in range(6)
    ]
    roomy = make(ROWS_ALONE["a state, and attention"](), max_rows=6)
    expected = roomy.generate(asked)
    states = roomy.engine._decoder._cache
    assert states.fits(6, 40)
    squeezed = make(ROWS_ALONE["a state, and attention"](), max_rows=6, cache_bytes=65_536)
    bound = next(size for size in range(0, 65_536, 64) if _fits(states, size, 3, 40))
    squeezed.engine._decoder._cache.limit_bytes = bound
    for one, other in zip(squeezed.generate(asked), expected, strict=True):
        assert one.ids.tolist() == other.ids.tolist()
    figures = squeezed.figures()
    assert figures.preempted > 0
    assert 0 < figures.cache_bytes <= figures.cache_limit_bytes == bound


def _fits(states, limit_bytes, rows, length):
    row_bytes, token_bytes = states._row_bytes, states._token_bytes
    return rows * (row_bytes + length * token_bytes) <= limit_bytes


def test_a_group_shares_the_beginning_that_its_prompts_have_in_common(make):
    model = make(max_rows=4)
    start = tuple(range(3, 23))
    asked = [
        TextRequest((*start, *tail), Sampling(max_tokens=9, seed=4), group=7)
        for tail in ((5, 6, 7), (5, 9), (44, 3, 2), ())
    ]
    completions = model.generate(asked)
    assert [one.num_shared for one in completions] == [0, 21, 20, 19]
    lonely = model.generate([replace(one, group=None) for one in asked])
    for one, other in zip(completions, lonely, strict=True):
        assert one.ids.tolist() == other.ids.tolist()
        np.testing.assert_allclose(one.logprobs, other.logprobs, atol=1e-5)


def test_a_seeded_request_gives_the_same_tokens_whatever_the_batch(make):
    model = make(max_rows=8)
    seeded = TextRequest((3, 4, 5), Sampling(max_tokens=30, seed=11, ignore_eos=True))
    [first] = model.generate([seeded])
    among = model.generate([*requests(6, Sampling(max_tokens=40)), seeded])[-1]
    assert first.ids.tolist() == among.ids.tolist()
    [other] = model.generate([replace(seeded, sampling=replace(seeded.sampling, seed=12))])
    assert other.ids.tolist() != first.ids.tolist()
    again = model.generate([TextRequest((3, 4, 5), Sampling(max_tokens=30, ignore_eos=True))] * 2)
    assert again[0].ids.tolist() != again[1].ids.tolist()  # without a seed each has its own


def test_stop_ids_and_stop_strings(make):
    model = make()
    prompt = model.encode("2+2=")
    [free] = model.generate([TextRequest(prompt, Sampling(seed=1, max_tokens=30))])
    text = model.decode(free.ids.tolist())
    assert free.text == text
    stop_id = int(free.ids[9])
    first = free.ids.tolist().index(stop_id)
    [by_id] = model.generate(
        [TextRequest(prompt, Sampling(seed=1, max_tokens=30, stop_ids=(stop_id,)))]
    )
    assert by_id.finish_reason == "stop"
    assert by_id.ids.tolist() == free.ids.tolist()[: first + 1]
    assert by_id.text == text[:first]
    stop = text[7:10]
    [by_text] = model.generate(
        [TextRequest(prompt, Sampling(seed=1, max_tokens=30, stop=("~~", stop)))]
    )
    at = text.find(stop)
    assert by_text.finish_reason == "stop"
    assert by_text.text == text[:at]
    assert by_text.ids.tolist() == free.ids.tolist()[: at + 3]


def test_the_context_bounds_a_completion(make):
    model = make(context_length=16)
    [one] = model.generate([TextRequest((5,) * 10, Sampling(max_tokens=50, ignore_eos=True))])
    assert one.finish_reason == "length"
    assert len(one.ids) == 6
    with pytest.raises(PromptTooLongError, match=r"has 16 tokens.* context of 16"):
        model.generate([TextRequest((5,) * 16)])


def test_a_small_cache_lets_the_youngest_wait_and_loses_nothing(make):
    tokens = 120  # for 6 rows that become 40 tokens long
    bytes_a_token = 2 * 2 * 2 * 8 * 4  # layers, keys and values, heads, size, bytes
    model = make(max_rows=6, cache_bytes=max(65_536, tokens * bytes_a_token))
    model.engine._decoder._cache.limit_tokens = tokens
    asked = [
        TextRequest((3 + at, 9, 5, 7), Sampling(max_tokens=36, seed=at, ignore_eos=True))
        for at in range(6)
    ]
    squeezed = model.generate(asked)
    assert model.figures().preempted > 0
    roomy = make(max_rows=6).generate(asked)
    for one, other in zip(squeezed, roomy, strict=True):
        assert one.ids.tolist() == other.ids.tolist()
        np.testing.assert_allclose(one.logprobs, other.logprobs, atol=1e-5)
    assert model.figures().cache_bytes <= tokens * bytes_a_token


def test_top_logprobs(make):
    model = make()
    [one] = model.generate([TextRequest((5, 6, 7), Sampling(max_tokens=5, logprobs=3, seed=2))])
    module = model.new_module()
    ids = torch.tensor([[*one.prompt_ids, *one.ids.tolist()]])
    expected = module(ids).logits[0, 2:-1].log_softmax(-1).topk(3)
    assert [[token for token, _ in row] for row in one.top] == expected.indices.tolist()
    given = [[value for _, value in row] for row in one.top]
    np.testing.assert_allclose(given, expected.values.detach().numpy(), atol=1e-5)
    assert [token.top for token in one.tokens()] == list(one.top)


def test_cancelling_frees_the_row_and_keeps_what_there_is(make):
    model = make(max_rows=1)
    long, short = TextRequest((5,), Sampling(max_tokens=90, ignore_eos=True)), TextRequest((6,))
    [first, second, third] = model.submit([long, short, short])
    model.engine._between_steps(lambda: model.engine._decoder.step())
    model.cancel(third)
    model.cancel(first)
    assert model.figures().num_running == 0
    given = model.collect([first, second, third])
    assert [one.finish_reason for one in given][::2] == ["cancelled", "cancelled"]
    assert given[1].finish_reason in ("stop", "length")
    assert len(given[0].ids) > 0 == len(given[2].ids)
    model.cancel(first)  # done already: nothing happens
    assert model.figures().cancelled == 2


def test_a_row_that_is_cancelled_leaves_the_others_as_they_were(make):
    model = make(max_rows=4)
    asked = [TextRequest((5, at), Sampling(max_tokens=30, seed=at)) for at in range(5, 9)]
    expected = [one.ids.tolist() for one in model.generate(asked)]
    tickets = model.submit(asked)
    model.engine._between_steps(lambda: model.engine._decoder.step())
    model.cancel(tickets[1])
    given = [one.ids.tolist() for one in model.collect(tickets)]
    assert given[::2] + given[3:] == expected[::2] + expected[3:]


def test_threads_generate_together(make):
    model = make(max_rows=8)
    asked = requests(6, replace(GREEDY, max_tokens=30))
    expected = [one.ids.tolist() for one in model.generate(asked)]
    given = {}

    def generate(at):
        given[at] = model.generate([asked[at]])[0].ids.tolist()

    threads = [threading.Thread(target=generate, args=(at,)) for at in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert [given[at] for at in range(6)] == expected


def test_requests_that_cannot_be_served_are_refused_in_words(make):
    model = make(max_rows=1, max_queue=2)
    with pytest.raises(SpecError, match="prompt is empty"):
        TextRequest(())
    with pytest.raises(SpecError, match="integers of 0 or more, got -1"):
        TextRequest((3, -1))
    with pytest.raises(SpecError, match="token 48 is beyond the vocabulary of 48"):
        model.generate([TextRequest((48,))])
    with pytest.raises(CapacityError, match="max_queue=2"):
        model.generate([TextRequest((5,))] * 4)
    with pytest.raises(DeadlineError, match="1 of 1 requests are not done"):
        model.generate([TextRequest((5,))], timeout_s=0.0)
    assert model.figures().num_running == model.figures().num_waiting == 0
    model.close()
    with pytest.raises(ClosedError):
        model.generate([TextRequest((5,))])


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"temperature": float("nan")}, "temperature: expected .*0 or more.*nan"),
        ({"temperature": -1.0}, "temperature"),
        ({"top_p": 0.0}, "top_p"),
        ({"min_p": 2.0}, "min_p"),
        ({"top_k": -1}, "top_k"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"seed": 1.5}, "seed: expected an integer or none, got 1.5"),
        ({"stop": "word"}, "stop: expected a tuple of strings"),
        ({"stop": ("",)}, "stop: expected strings that are not empty"),
        ({"stop_ids": (True,)}, "stop_ids"),
        ({"stop_ids": tuple(range(65))}, "stop_ids: expected at most 64, got 65"),
        ({"logprobs": -1}, "logprobs"),
    ],
)
def test_settings_of_sampling_are_checked(settings, words):
    with pytest.raises(ConfigError, match=words):
        Sampling(**settings)


def test_an_architecture_that_sees_what_comes_is_refused_before_it_gives_wrong_tokens(make):
    sees_all = transformers.BertConfig(
        vocab_size=48, hidden_size=16, num_hidden_layers=2, num_attention_heads=2,
        initializer_range=0.3,
    )  # fmt: skip
    words = "BertLMHeadModel cannot generate: .* as row by row .*logits differ by"
    with pytest.raises(ConfigError, match=words):
        make(sees_all)


def test_weights_that_overflow_end_a_completion_with_an_error(make):
    model = make()
    huge = {name: tensor.clone() for name, tensor in model.weights().items()}
    huge["model.norm.weight"] = huge["model.norm.weight"] * 3e38
    model.publish(huge)
    [one] = model.generate([TextRequest((5, 6))])
    assert one.finish_reason == "error"
    assert one.error.startswith("the logits are not finite")


def test_a_module_that_raises_ends_what_is_under_way_and_the_rest_goes_on(make, monkeypatch):
    model = make(max_rows=4)
    step_module = model.engine._decoder.module
    prefill, decode = step_module.prefill, step_module.decode
    calls = iter(range(100))

    def once(compute):
        def computed(*arguments):
            if next(calls) == 0:
                raise RuntimeError("out of memory")
            return compute(*arguments)

        return computed

    for name, compute in (("prefill", prefill), ("decode", decode)):
        calls = iter(range(100))
        monkeypatch.setattr(step_module, name, once(compute))
        request = TextRequest((5, 6, 7), Sampling(max_tokens=3, ignore_eos=True), group="g")
        given = model.generate([request] * 6, timeout_s=30)
        errors = [one.error for one in given if one.finish_reason == "error"]
        assert set(errors) == {"RuntimeError: out of memory"}
        assert 1 <= len(errors) <= 4
        assert [len(one.ids) for one in given if one.finish_reason == "length"] == [3] * (
            6 - len(errors)
        )
        monkeypatch.setattr(step_module, name, compute)
    assert model.figures().num_running == model.figures().num_waiting == 0


def test_a_request_has_its_own_seed_or_that_of_its_sampling(make):
    model = make()
    shared = Sampling(max_tokens=12, ignore_eos=True)
    seeded = Sampling(max_tokens=12, ignore_eos=True, seed=4)
    own, given, other = model.generate(
        [
            TextRequest((5, 6), shared, seed=4),
            TextRequest((5, 6), seeded),
            TextRequest((5, 6), seeded, seed=5),
        ]
    )
    assert own.ids.tolist() == given.ids.tolist() != other.ids.tolist()


@pytest.mark.parametrize("temperature", [5e-324, 1e-50, 1e-30, 1e30, 1e308])
def test_a_temperature_beyond_float32_is_as_good_as_certainty_or_chance(make, temperature):
    model = make()
    plain = TextRequest((5, 6), Sampling(max_tokens=4, temperature=0.0, ignore_eos=True))
    sampling = Sampling(max_tokens=4, temperature=temperature, ignore_eos=True, top_k=7)
    other, one = model.generate([plain, TextRequest((5, 6), sampling)])
    assert one.finish_reason == other.finish_reason == "length"
    if temperature < 1:
        assert one.ids.tolist() == other.ids.tolist()
        assert one.logprobs.tolist() == [0.0] * 4
    else:
        np.testing.assert_allclose(one.logprobs, -np.log(7), atol=1e-6)


def test_integers_beyond_64_bits_mean_that_there_is_no_bound(make):
    model = make()
    huge = Sampling(max_tokens=10**30, top_k=2**63, seed=10**30, ignore_eos=True)
    other = Sampling(max_tokens=90, top_k=10**30, seed=10**30, ignore_eos=True)
    one, two = model.generate([TextRequest((5, 6), huge), TextRequest((5, 6), other)])
    assert one.finish_reason == two.finish_reason == "length"
    assert one.ids.tolist()[:90] == two.ids.tolist()


def test_rows_for_which_there_is_no_memory_end_and_the_rest_goes_on(make, monkeypatch):
    model = make(max_rows=8)
    [running] = model.submit([TextRequest((5, 6), Sampling(max_tokens=60, ignore_eos=True))])
    model.engine._between_steps(model.engine._decoder.step)
    resize = RowCache.resize

    def refused(cache, *arguments):
        cache.keys = cache.keys[:1]  # half done, as where the second block finds no memory
        raise RuntimeError("out of memory")

    monkeypatch.setattr(RowCache, "resize", refused)
    request = TextRequest((5, 6, 7), Sampling(max_tokens=3, ignore_eos=True), group="g")
    waiting = model.submit([request] * 3)
    given = model.collect([running, *waiting], timeout_s=20)
    assert {one.error for one in given} == {"RuntimeError: out of memory"}
    monkeypatch.setattr(RowCache, "resize", resize)
    assert [len(one.ids) for one in model.generate([request] * 3, timeout_s=20)] == [3] * 3
    assert model.figures().num_running == model.figures().num_waiting == 0


@pytest.mark.gpu
@pytest.mark.parametrize("name", [*ARCHITECTURES, *ROWS_ALONE])
def test_a_gpu_writes_the_tokens_that_a_cpu_writes(make, name):
    architecture = (ARCHITECTURES | ROWS_ALONE)[name]()
    requests = [TextRequest(tuple(range(2, 4 + row)), GREEDY) for row in range(5)]
    found = {}
    for device in ("cpu", "cuda"):
        model = make(architecture, device=device)
        found[device] = model.generate(requests)
        model.publish({name: 0.5 * value for name, value in model.weights().items()})
        found[device] += model.generate(requests)
    for one, other in zip(found["cpu"], found["cuda"], strict=True):
        assert one.ids.tolist() == other.ids.tolist()
        np.testing.assert_allclose(one.logprobs, other.logprobs, atol=1e-3)
