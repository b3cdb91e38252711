"""A language model on the device: tokens a second beside the roofline, training, and both at once.

    uv run python -m benchmarks.gpu.llm [--device cuda|cpu]

Random weights of a Llama with a third of a billion parameters (on the CPU, a dry run, a quarter of
a million). One row that is decoded reads all weights: its share is of the measured bandwidth of the
memory. Many rows multiply: their share is of the ceiling of one large matrix product, two
operations a parameter and token; a training step counts six. `in turns` samples a round and then
trains on it; `at once` samples the next one meanwhile, in a thread of its own.
"""

from __future__ import annotations

import threading
import time
from argparse import Namespace
from contextlib import suppress
from typing import Any, NamedTuple

import torch
from benchmarks.gpu.device import DEVICE, finish, rate_of
from benchmarks.gpu.roofline import ceiling
from benchmarks.harness import Report, argument, main
from tokenizers import Tokenizer, models
from transformers import LlamaConfig, PreTrainedTokenizerFast

from bray.text.policy_gradient_config import GRPOConfig
from bray.text.row_queue import RowQueue, pack_samples
from bray.text.samples import TextSample, TokenRow
from bray.text.trainers.policy_gradient_trainer import PolicyGradientTrainer
from bray_core.errors import DeadlineError
from bray_model.text.config import TextModelConfig
from bray_model.text.requests import Completion, Sampling, TextRequest
from bray_model.text.text_model import TextModel

GROUP = 8


class Size(NamedTuple):
    """A model, and what it is asked for."""

    hidden: int
    layers: int
    heads: int
    vocabulary: int
    precision: Any
    rows: tuple[int, ...]
    prompt: int
    answer: int


SIZES = {
    "cuda": Size(1024, 16, 16, 32_768, "bf16", (1, 32, 128), 128, 64),
    "cpu": Size(64, 2, 4, 64, "fp32", (1, 8), 8, 8),
}


def make_model(size: Size, device: str) -> TextModel:
    """Return the model with random weights and a vocabulary of numbers."""
    architecture = LlamaConfig(
        hidden_size=size.hidden, intermediate_size=4 * size.hidden, vocab_size=size.vocabulary,
        num_hidden_layers=size.layers, num_attention_heads=size.heads,
        max_position_embeddings=1024, bos_token_id=None, eos_token_id=None, pad_token_id=0,
    )  # fmt: skip
    vocabulary = {str(at): at for at in range(size.vocabulary)}
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer(models.WordLevel(vocabulary, unk_token="0")), pad_token="0"
    )
    config = TextModelConfig(
        max_rows=max(size.rows), device=device, precision=size.precision,
        cache_bytes=32 * 1024**3 if device == "cuda" else 1024**3,
    )  # fmt: skip
    return TextModel.create(architecture, tokenizer, config)


def requests(size: Size, rows: int) -> list[TextRequest]:
    """Return so many requests, eight to a prompt where there are as many."""
    asked = Sampling(max_tokens=size.answer, ignore_eos=True)
    made = []
    for row in range(rows):
        group = row // GROUP
        prompt = [1 + (at * 7 + group * 13) % (size.vocabulary - 1) for at in range(size.prompt)]
        made.append(TextRequest(tuple(prompt), asked, group=group))
    return made


def bandwidth(device: str, seconds: float) -> float:
    """Return the bytes/s at which the device reads memory: a sum over 1 GiB, 64 MiB on the CPU."""
    memory = torch.ones((1024 if device == "cuda" else 64) * 2**18, device=device)

    def read() -> float:
        memory.sum()
        return float(memory.nbytes)

    return rate_of(read, device, seconds)


def trainer_of(model: TextModel, size: Size, device: str) -> tuple[PolicyGradientTrainer, RowQueue]:
    """Return a trainer of a copy of the model's weights, and the queue that it trains from."""
    queue = RowQueue(2)
    part = GRPOConfig(
        variant="dr_grpo", device=device, precision=size.precision, minibatches=1,
        old_log_prob="sampler", trainer_threads=1, max_lag=8,
    )  # fmt: skip
    module = model.new_module().float()
    return PolicyGradientTrainer(module, queue, part, longest_answer=size.answer), queue


def samples(completions: list[Completion]) -> list[TextSample]:
    """Return answers as samples with rewards that differ within each group."""
    return [
        TextSample(
            rows=(
                TokenRow.of_answer(
                    list(one.prompt_ids), one.ids.tolist(), one.logprobs.tolist(), 0
                ),
            ),
            reward=float(number % 2),
            group=number // GROUP,
        )
        for number, one in enumerate(completions)
    ]


def benchmark(options: Namespace, report: Report) -> None:
    """Measure generation, training, and both in turns and at once; print a table."""
    device = options.device
    size = SIZES[device]
    each = options.seconds / (8 + 4 * len(size.rows))  # the warm-up takes as long again
    torch.set_num_threads(1 if device == "cpu" else torch.get_num_threads())
    model = make_model(size, device)
    weights = [one for one in model.weights().values() if one.ndim == 2]
    parameters = sum(one.numel() for one in weights)
    products = ceiling(device, size.precision, min(1.0, each))
    reads = bandwidth(device, min(1.0, each))
    print(f"# {parameters / 1e6:.1f} M parameters, {size.precision}")
    print(f"{'generation':24}{'tokens/s':>12}{'share of the roofline':>24}")
    for rows in size.rows:
        asked = requests(size, rows)
        rate = rate_of(
            lambda asked=asked: float(sum(len(one.ids) for one in model.generate(asked))),
            device, each,
        )  # fmt: skip
        per_weights = rate / rows * sum(one.nbytes for one in weights) / reads
        share = max(per_weights, 2 * parameters * rate / products)
        report.figures[f"generate {rows}"] = {"tokens_per_s": rate, "share": share}
        print(f"{f'{rows} rows':24}{rate:12,.0f}{share:24.2f}", flush=True)
    trainer, queue = trainer_of(model, size, device)
    asked = requests(size, max(size.rows))
    replay = pack_samples(samples(model.generate(asked)))
    length = float(len(asked) * (size.prompt + size.answer))

    def trained() -> float:
        queue.put(replay)
        trainer.run(1, checkpoint=False)
        finish(device)
        return length

    rate = rate_of(trained, device, each)
    share = 6 * parameters * rate / products
    report.figures["train"] = {"tokens_per_s": rate, "share": share}
    print(f"{'training':24}{rate:12,.0f}{share:24.2f}", flush=True)
    turns = {"in turns": _in_turns, "at once": _at_once}
    for name, play in turns.items():
        began = time.perf_counter()
        rounds = play(model, trainer, queue, asked, 2 * each)
        rate = rounds * len(asked) / (time.perf_counter() - began)
        report.figures[name] = {"samples_per_s": rate}
        print(f"{'sample and train ' + name:24}{rate:12,.1f}{'samples/s':>24}", flush=True)
    model.close()


def _in_turns(model: Any, trainer: Any, queue: RowQueue, asked: Any, seconds: float) -> int:
    """Sample, train and publish, one after the other; return the rounds."""
    ends, rounds = time.perf_counter() + seconds, 0
    while rounds < 1 or time.perf_counter() < ends:
        queue.put(pack_samples(samples(model.generate(asked))))
        trainer.run(1, checkpoint=False)
        model.publish(trainer.module.state_dict())
        rounds += 1
    return rounds


def _at_once(model: Any, trainer: Any, queue: RowQueue, asked: Any, seconds: float) -> int:
    """Sample in a thread while the round before is trained on; return the rounds."""
    ends, rounds = time.perf_counter() + seconds, 0
    is_over = threading.Event()

    def sample() -> None:
        while not is_over.is_set():
            queue.put(pack_samples(samples(model.generate(asked))))

    thread = threading.Thread(target=sample, daemon=True)
    thread.start()
    while rounds < 1 or time.perf_counter() < ends:
        trainer.run(1, checkpoint=False)
        model.publish(trainer.module.state_dict())
        rounds += 1
    is_over.set()
    while thread.is_alive():  # it may wait for room
        with suppress(DeadlineError):
            queue.pop(0.05)
    return rounds


if __name__ == "__main__":
    main(
        __doc__,
        benchmark,
        argument("--device", **DEVICE),
        argument("--seconds", type=float, default=60.0, help="of all measurements together"),
    )
