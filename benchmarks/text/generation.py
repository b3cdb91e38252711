"""Tokens a second of `TextModel` beside transformers' `generate` and its continuous batching.

    uv run python -m benchmarks.text.generation            # the 1 M model, a minute or two
    uv run python -m benchmarks.text.generation --size 60

Everything runs with one torch thread, on random weights, greedily, in turns in one process, and
the figures to look at are the ratios of CPU seconds.
Prompts have 8 to 64 tokens. `even` asks for 16 to 128 tokens, uniformly, of 32 requests at once;
`tailed` for 16 tokens of most and 256 of one in sixteen, 128 requests on 32 rows.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from functools import partial

import numpy as np
import torch
from benchmarks.harness import Report, argument, in_turns, main
from tokenizers import Tokenizer, models
from transformers import LlamaConfig, PreTrainedTokenizerFast

from bray_model.text.config import TextModelConfig
from bray_model.text.requests import Sampling, TextRequest
from bray_model.text.text_model import TextModel

SIZES = {
    1: {"hidden_size": 128, "intermediate_size": 352, "num_hidden_layers": 4, "vocab_size": 1024,
        "num_attention_heads": 4, "num_key_value_heads": 4},
    60: {"hidden_size": 640, "intermediate_size": 1728, "num_hidden_layers": 10,
         "vocab_size": 8192, "num_attention_heads": 10, "num_key_value_heads": 10},
}  # fmt: skip
ROWS = 32
STEPS = 64


def make_model(size: int, bf16: bool) -> TextModel:
    """Return a model with random weights and a vocabulary of numbers."""
    settings = SIZES[size]
    architecture = LlamaConfig(
        **settings, max_position_embeddings=512, bos_token_id=None, eos_token_id=None,
        pad_token_id=0,
    )  # fmt: skip
    vocab = {str(at): at for at in range(settings["vocab_size"])}
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer(models.WordLevel(vocab, unk_token="0")), pad_token="0"
    )
    config = TextModelConfig(max_rows=ROWS, precision="bf16" if bf16 else "fp32")
    return TextModel.create(architecture, tokenizer, config)


def loads(vocab_size: int, divisor: int) -> dict[str, list[TextRequest]]:
    """Return the requests of each load; `divisor` makes the tailed one shorter."""
    rng = np.random.default_rng(0)

    def request(tokens: int) -> TextRequest:
        prompt = rng.integers(1, vocab_size, rng.integers(8, 65)).tolist()
        return TextRequest(tuple(prompt), Sampling(max_tokens=int(tokens), temperature=0.0))

    even = [request(tokens) for tokens in rng.integers(16, 129, 32)]
    tailed = [request(256 if at % 16 == 7 else 16) for at in range(128 // divisor)]
    return {"even": even, "tailed": tailed}


def by_generate(module, requests: list[TextRequest]) -> Callable[[], None]:
    """Left-padded batches of 32 in the order that they came; the longest of each is waited for."""

    def run() -> None:
        for begin in range(0, len(requests), ROWS):
            batch = requests[begin : begin + ROWS]
            width = max(len(one.prompt_ids) for one in batch)
            ids = torch.tensor([[0] * (width - len(o.prompt_ids)) + [*o.prompt_ids] for o in batch])
            module.generate(
                ids, attention_mask=(ids != 0).long(), do_sample=False, pad_token_id=0,
                max_new_tokens=max(one.sampling.max_tokens for one in batch),
            )  # fmt: skip

    return run


def by_continuous_batching(module, requests: list[TextRequest]) -> Callable[[], None]:
    """The scheduler of transformers, with its paged cache."""
    from transformers import ContinuousBatchingConfig, GenerationConfig

    def run() -> None:
        config = ContinuousBatchingConfig(num_blocks=512, block_size=32, max_batch_tokens=1024)
        generation = GenerationConfig(do_sample=False, eos_token_id=-1, pad_token_id=0)
        with module.continuous_batching_context_manager(
            generation_config=generation, continuous_batching_config=config
        ) as manager:
            for one in requests:
                manager.add_request(list(one.prompt_ids), max_new_tokens=one.sampling.max_tokens)
            done = 0
            while done < len(requests):
                result = manager.get_result(timeout=60)
                if result is None:
                    raise TimeoutError("no result for a minute")
                done += result.is_finished()

    return run


def cpu_seconds(run: Callable[[], object]) -> float:
    """Return the CPU seconds of this process that a call takes."""
    begin = time.process_time()
    run()
    return time.process_time() - begin


def alternating(runs: dict[str, Callable[[], object]], rounds: int) -> dict[str, list[float]]:
    """Return the CPU seconds of each in each round."""
    return in_turns({name: partial(cpu_seconds, run) for name, run in runs.items()}, rounds)


def products(module, rows: int) -> Callable[[], None]:
    """The matrix products of one step and nothing else."""
    weights = [
        p.data for name, p in module.named_parameters() if p.ndim == 2 and "embed" not in name
    ]
    inputs = {weight.shape[1]: torch.randn(rows, weight.shape[1]) for weight in weights}

    @torch.inference_mode()
    def run() -> None:
        for weight in weights:
            torch.nn.functional.linear(inputs[weight.shape[1]], weight)

    return run


def step_bounds(model: TextModel, module, rounds: int, report: Report) -> None:
    """Tell a decoding step beside the bandwidth at batch 1, and the bare products at batch 32."""
    big = torch.randn(64 * 1024 * 1024 // 4)  # 64 MB: beyond the caches
    weight_bytes = sum(p.numel() * p.element_size() for p in module.parameters() if p.ndim == 2)
    weight_bytes -= model.weights()["model.embed_tokens.weight"].nbytes
    for rows in (1, ROWS):
        asked = [
            TextRequest((5, 6, 7 + at), Sampling(max_tokens=STEPS, temperature=0.0))
            for at in range(rows)
        ]
        bare = products(module, rows)
        found = alternating(
            {
                "bray": partial(model.generate, asked),
                "bare products": lambda bare=bare: [bare() for _ in range(STEPS)],
                "reading the weights": lambda: [big.sum() for _ in range(8)],
            },
            rounds,
        )
        share = weight_bytes / (8 * big.nbytes)
        times = {
            name: [
                1e3 * one * (share if name == "reading the weights" else 1 / STEPS) for one in all
            ]
            for name, all in found.items()
        }
        report.table(f"a decoding step of {rows} rows", times, unit="CPU ms", base="bray")


def benchmark(options: argparse.Namespace, report: Report) -> None:
    """Run what the command line asks for."""
    torch.set_num_threads(1)
    size = int(options.size)
    model = make_model(size, options.bf16)
    module = model.new_module().requires_grad_(False).eval()
    module.generation_config.eos_token_id = None
    continuous = model.new_module().requires_grad_(False).eval()
    continuous.set_attn_implementation("sdpa")
    count = sum(p.numel() for p in module.parameters())
    print(f"{count / 1e6:.1f} M parameters, {'bf16' if options.bf16 else 'fp32'}, one thread")
    for name, requests in loads(model.vocab_size, 1 if size == 1 else 2).items():
        if name not in options.loads:
            continue
        tokens = sum(one.sampling.max_tokens for one in requests)
        runs = {
            "bray": partial(model.generate, requests),
            "generate": by_generate(module, requests),
            "continuous batching": by_continuous_batching(continuous, requests),
        }
        if options.skip_continuous:
            del runs["continuous batching"]
        found = alternating(runs, options.rounds)
        title = f"{name}, {tokens} useful tokens"
        report.table(title, found, unit="CPU seconds", base="bray")
    step_bounds(model, module, options.rounds, report)
    model.close()


if __name__ == "__main__":
    main(
        __doc__,
        benchmark,
        argument("--size", choices=("1", "60"), default="1", help="million parameters"),
        argument("--bf16", action="store_true", help="instead of fp32"),
        argument("--skip-continuous", action="store_true", help="leave continuous batching out"),
        argument("--loads", default="even,tailed", help="which loads, with a comma between"),
        rounds=3,
    )
