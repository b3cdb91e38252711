"""GRPO by bray beside TRL's `GRPOTrainer`: the same model, sums and settings, one thread each.

    uv pip install --target FOLDER --no-deps trl datasets dill multiprocess   # else nothing of it
    uv run python -m benchmarks.text.trl --site FOLDER [--generations 60] [--seeds 3]

Both begin from one supervised model of 0.22 M parameters, ask 32 sums sixteen times a generation,
take two optimiser steps on all 512 answers (token mean, advantages without deviation, clip 0.2 and
0.28, no KL, AdamW 3e-4), without gradient checkpointing. Each run is a process of its own; counted
are CPU seconds of the loop alone, not of imports. Mean rewards are of each fifth of the run.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from argparse import Namespace
from pathlib import Path
from statistics import fmean
from typing import Any

from benchmarks.harness import ROOT, Report, argument, main

PROMPTS, GROUP, TOKENS, RATE = 32, 16, 5, 3e-4
FIFTHS = 5


def supervised(folder: Path, seed: int) -> Path:
    """Train until one sampled answer in ten is right; return the model's folder."""
    command = [
        str(Path(sys.executable).parent / "bray"), "train", "sft",
        "bray.text.tasks.addition:Addition", "trainer.learning_rate=3e-3",
        "trainer.batch_size=128", "trainer.warmup_steps=50", "trainer.evaluate_every=3200",
        "goal.episode_return=0.1", "goal.evaluation_episodes=500", "goal.max_frames=200000",
        "--project", str(folder), "--trial", "one", "--seed", str(seed),
    ]  # fmt: skip
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return folder / "one" / "models" / "policy" / "huggingface"


def by_bray(model_folder: Path, generations: int, seed: int) -> dict[str, Any]:
    """Sample and train in turns with the parts of `bray train grpo`."""
    import numpy as np

    from bray.text.config import SamplingConfig
    from bray.text.policy_gradient_config import GRPOConfig
    from bray.text.rounds import PromptRounds
    from bray.text.row_queue import RowQueue, pack_samples
    from bray.text.sampling import AnswerSampler
    from bray.text.shaping import shaped
    from bray.text.tasks.addition import Addition
    from bray.text.trainers.policy_gradient_trainer import PolicyGradientTrainer
    from bray_model.text.config import TextModelConfig
    from bray_model.text.text_model import TextModel

    config = TextModelConfig(max_rows=PROMPTS * GROUP, prefill_tokens=4096)
    model = TextModel.load(model_folder, config)
    sampler = AnswerSampler(model, SamplingConfig(max_tokens=TOKENS))
    rounds = PromptRounds(Addition(), sampler, reward_timeout_s=60.0)
    part = GRPOConfig(
        variant="dr_grpo", baseline="group_mean", mean="token", learning_rate=RATE, clip_high=0.28,
        prompts_per_step=PROMPTS, group_size=GROUP, minibatches=2, drop_equal_groups=False,
        max_grad_norm=1.0, weight_decay=0.0, beta2=0.999, warmup_steps=0,
    )  # fmt: skip
    queue = RowQueue(1)
    trainer = PolicyGradientTrainer(
        model.new_module(), queue, part, longest_answer=TOKENS, seed=seed
    )
    rng = np.random.default_rng(seed)
    rewards: list[float] = []
    spent = timed_method(model, "generate")
    begin = time.process_time()
    for _ in range(generations):
        played = rounds.play(PROMPTS, GROUP, rng)
        rewards.append(float(np.mean([one.reward for one in played])))
        queue.put(pack_samples(shaped(played, part, TOKENS)))
        trainer.run(1, checkpoint=False)
        model.publish(trainer.module.state_dict())
    took = time.process_time() - begin
    return _figures(took, spent[0], sampler.tokens, generations, rewards)


def by_trl(model_folder: Path, generations: int, seed: int) -> dict[str, Any]:
    """Run TRL's trainer with the same settings."""
    import numpy as np
    from datasets import Dataset
    from transformers import AutoModelForCausalLM, AutoTokenizer
    from trl import GRPOConfig, GRPOTrainer

    from bray.text.tasks.addition import Addition

    tokenizer = AutoTokenizer.from_pretrained(model_folder, padding_side="left")
    model = AutoModelForCausalLM.from_pretrained(model_folder)
    model.generation_config.pad_token_id = tokenizer.pad_token_id
    model.generation_config.eos_token_id = tokenizer.eos_token_id
    asked = Addition().prompts(PROMPTS * generations, np.random.default_rng(seed))
    rows = [{"prompt": one.content, "answer": one.columns["answer"]} for one in asked]

    def exact(completions: list[str], answer: list[str], **_: Any) -> list[float]:
        return [float(text == right) for text, right in zip(completions, answer, strict=True)]

    with tempfile.TemporaryDirectory() as scratch:
        config = GRPOConfig(
            output_dir=scratch, use_cpu=True, bf16=False, gradient_checkpointing=False,
            per_device_train_batch_size=PROMPTS * GROUP // 2, steps_per_generation=2,
            num_generations=GROUP, max_completion_length=TOKENS, max_steps=2 * generations,
            learning_rate=RATE, lr_scheduler_type="constant", beta=0.0, epsilon=0.2,
            epsilon_high=0.28, loss_type="dapo", scale_rewards="none", temperature=1.0,
            max_grad_norm=1.0, report_to="none", save_strategy="no", logging_steps=1, seed=seed,
            disable_tqdm=True, shuffle_dataset=False,
        )  # fmt: skip
        trainer = GRPOTrainer(
            model=model, reward_funcs=exact, args=config, train_dataset=Dataset.from_list(rows),
            processing_class=tokenizer,
        )  # fmt: skip
        spent = timed_method(trainer, "_generate")
        begin = time.process_time()
        trainer.train()
        took = time.process_time() - begin
    logged = [line for line in trainer.state.log_history if "reward" in line]
    lengths = [line["completions/mean_length"] for line in logged]
    tokens = float(np.mean(lengths)) * PROMPTS * GROUP * generations
    return _figures(took, spent[0], tokens, generations, [line["reward"] for line in logged])


def timed_method(owner: Any, name: str) -> list[float]:
    """Let a method count its CPU seconds in what is returned."""
    method, spent = getattr(owner, name), [0.0]

    def timed(*given: Any, **named: Any) -> Any:
        began = time.process_time()
        try:
            return method(*given, **named)
        finally:
            spent[0] += time.process_time() - began

    setattr(owner, name, timed)
    return spent


def _figures(
    took: float, sampling_s: float, tokens: float, generations: int, rewards: list[float]
) -> dict[str, Any]:
    size = max(1, len(rewards) // FIFTHS)
    parts = [rewards[at * size : (at + 1) * size] for at in range(FIFTHS)]
    return {
        "samples trained": PROMPTS * GROUP * generations / took,
        "tokens generated": tokens / sampling_s,
        "cpu_s": took,
        "rewards": [round(sum(part) / max(1, len(part)), 3) for part in parts],
    }


def _run(name: str, folder: Path, options: Namespace, seed: int) -> dict[str, Any]:
    """Run one of both in a process of its own."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": options.site or ""}
    command = [sys.executable, "-m", "benchmarks.text.trl", "--peer", name]
    command += ["--model", str(folder), "--generations", str(options.generations)]
    command += ["--seed", str(seed)]
    done = subprocess.run(
        command, env=environment, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True
    )
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def benchmark(options: Namespace, report: Report) -> None:
    """Run both in turns over the seeds; print rates, ratios and mean rewards."""
    if options.peer:
        import torch

        torch.set_num_threads(1)
        run = {"bray": by_bray, "TRL": by_trl}[options.peer]
        print(json.dumps(run(Path(options.model), options.generations, options.seed)), flush=True)
        return
    found: dict[str, list[dict[str, Any]]] = {"bray": [], "TRL": []}
    with tempfile.TemporaryDirectory() as scratch:
        for seed in range(1, options.seeds + 1):
            folder = supervised(Path(scratch) / str(seed), seed)
            for name in list(found) if seed % 2 else list(reversed(found)):
                found[name].append(_run(name, folder, options, seed))
                print(json.dumps({"name": name, "seed": seed, **found[name][-1]}), flush=True)
    for key in ("samples trained", "tokens generated"):
        samples = {name: [one[key] for one in runs] for name, runs in found.items()}
        report.table(f"{key} a CPU second", samples, unit="1/s", base="TRL")
    rewards = {
        f"{name}, fifth {fifth + 1}": [run["rewards"][fifth] for run in found[name]]
        for fifth in range(FIFTHS)
        for name in found
    }
    report.table("mean reward by fifths of the run, over seeds", rewards, unit="reward")
    apart = [
        fmean(run["rewards"][fifth] for run in found["bray"])
        - fmean(run["rewards"][fifth] for run in found["TRL"])
        for fifth in range(FIFTHS)
    ]
    print("mean reward of each fifth, bray - TRL:", ", ".join(f"{one:+.3f}" for one in apart))


if __name__ == "__main__":
    main(
        __doc__,
        benchmark,
        argument("--site", help="folder with TRL"),
        argument("--generations", type=int, default=60),
        argument("--seeds", type=int, default=1),
        argument("--peer", choices=("bray", "TRL"), help="run only this, from --model"),
        argument("--model", help="folder of the supervised model"),
        argument("--seed", type=int, default=1),
    )
