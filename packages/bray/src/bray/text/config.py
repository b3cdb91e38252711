"""Settings of the parts of a run that trains a language model."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

from bray_core.errors import ConfigError
from bray_core.settings.ranges import (
    FiniteFloat,
    NonNegativeFloat,
    NonNegativeInt,
    Port,
    PositiveFloat,
    PositiveInt,
    Range,
    check_fields,
)

Precision = Literal["fp32", "bf16"]


@dataclass(frozen=True, kw_only=True, slots=True)
class LanguageModelConfig:
    """The language model: a folder of weights, or a configuration to train from scratch."""

    path: str | None = None
    """Folder with weights, configuration and tokenizer as transformers saves them, or its name on
    the Hugging Face hub. None makes a new model by `config`."""
    config: Mapping[str, Any] = field(default_factory=dict)
    """Configuration of a new model as transformers has it, with its `model_type`, such as
    `{model_type: llama, hidden_size: 96, num_hidden_layers: 2}`. The size of the vocabulary and the
    special tokens are those of the tokenizer."""
    tokenizer: str | None = None
    """Folder of the tokenizer. None takes that of `path`, or makes one of `characters`."""
    characters: str = ""
    """Characters of a tokenizer in which each character is one token, for a new model."""
    chat_template: str | None = None
    """Jinja template of messages, in place of the tokenizer's own."""
    context: PositiveInt = 1024
    """Longest row, in tokens: the prompt and all turns of a session. A longer prompt is refused."""
    lora_rank: NonNegativeInt = 0
    """Rank of the LoRA adapters that are trained in place of the weights; 0 trains the weights.
    Adapters need little memory and learn a little more slowly. 8 to 64."""
    lora_alpha: PositiveFloat = 16.0
    """Scale of the adapters: they count `lora_alpha / lora_rank` times. Usually once or twice the
    rank; too large is unstable."""
    lora_targets: tuple[str, ...] = ()
    """Names of the linear layers with adapters, such as `q_proj`; empty takes all but the last."""

    def __post_init__(self) -> None:
        check_fields(self)
        if self.path is not None and self.config:
            raise ConfigError("config: expected nothing beside `path`, whose folder has one")

    def check_whole(self) -> None:
        """Refuse settings from which no model can be made.

        Raises:
            ConfigError: begins with the dotted name of a setting.
        """
        if self.path is None and not self.config:
            raise ConfigError(
                "model.path: missing: expected the folder of a model, or `config` of a new one, "
                "such as {model_type: llama, hidden_size: 96}"
            )
        if self.path is None and self.tokenizer is None and not self.characters:
            raise ConfigError("model.characters: missing: a new model needs them, or `tokenizer`")


@dataclass(frozen=True, kw_only=True, slots=True)
class TextSourceConfig:
    """Where prompts or sessions come from, and what rewards them."""

    environment: str = ""
    """A file of prompts (`.jsonl` or `.parquet`), or `module:Class` or `file.py:Class`: a
    `bray.text.task.TextTask`, or an environment with `reset` and `step` on messages."""
    reward: str | None = None
    """Function `module:function` or `file.py:function` that rewards answers to the prompts of a
    file. It is called with `prompts`, `completions` and the file's other columns as lists, and
    returns a number each; it may be async."""
    reward_timeout_s: PositiveFloat = 60.0
    """Longest time that one call of the reward may take; then its samples fail and are counted."""
    held_out: str | None = None
    """File of prompts that evaluations ask. None keeps back `held_out_share` of the prompts."""
    held_out_share: Annotated[float, Range(above=0, below=1)] = 0.05
    """Share of a file's prompts that evaluations ask, and training never."""
    demonstrations: str | None = None
    """File of demonstrations for supervised steps: lines with `prompt` and `completion`, or with
    `messages`. None takes those of the task, where it has some."""
    program: str | None = None
    """Command of a program of yours that plays sessions at the endpoint, such as `python play.py`.
    It finds the endpoint in OPENAI_BASE_URL. `{python}` stands for this Python, `{templates}` for
    the folder of bray's own templates. A class that is named besides, as `environment`, gives
    demonstrations and plays evaluations."""
    external: bool = False
    """Whether programs that were started elsewhere play at the endpoint."""
    count: PositiveInt = 1
    """Processes of the program that run at once."""
    port: Port = 0
    """Port of the endpoint for programs; 0 takes any free one."""
    session_timeout_s: PositiveFloat = 120.0
    """Longest time between two requests of a session; then it ends without a reward and is
    counted."""
    settings: Mapping[str, Any] = field(default_factory=dict)
    """Arguments of the class, by name."""

    def __post_init__(self) -> None:
        check_fields(self)
        plays = {
            "environment": bool(self.environment),
            "program": self.program is not None,
            "external": self.external,
        }
        given = [name for name, is_given in plays.items() if is_given]
        if not given:
            raise ConfigError(
                "environment: missing: expected a file of prompts (.jsonl, .parquet), a class "
                "module:Class, or the `program` that plays at the endpoint, or `external: true`"
            )
        if self.program is not None and self.external:
            raise ConfigError("external: expected one of program and external, got both")

    @property
    def title(self) -> str:
        """What is played, in words."""
        return self.environment or self.program or "an external program"

    @property
    def num_processes(self) -> int:
        """Simulators over the wire, of which there are none."""
        return 0


@dataclass(frozen=True, kw_only=True, slots=True)
class SamplingConfig:
    """How answers are sampled."""

    max_tokens: PositiveInt = 256
    """Longest answer, in tokens. An answer that is longer is cut off."""
    temperature: PositiveFloat = 1.0
    """Divisor of the logits while sampling in training. 1 samples what is trained; lower explores
    less, higher writes nonsense."""
    slots: PositiveInt = 512
    """Answers that are generated side by side; the others wait. More need more memory."""

    def __post_init__(self) -> None:
        check_fields(self)


@dataclass(frozen=True, kw_only=True, slots=True)
class SamplersConfig:
    """The processes that sample on Ray."""

    num_workers: PositiveInt = 1
    """Samplers on Ray, which share the groups of a round and the processes of a program; each has
    the model, its cache and its endpoint. A local run samples in its own process."""

    def __post_init__(self) -> None:
        check_fields(self)


@dataclass(frozen=True, kw_only=True, slots=True)
class TokenTrainerConfig:
    """What every trainer of tokens can be told; each algorithm adds its own."""

    learning_rate: PositiveFloat = 1e-5
    """AdamW's step size. 1e-6 to 1e-5 for large pretrained models, 1e-4 with LoRA, 1e-3 for tiny
    ones. Too large forgets what was learnt before; too small wastes the samples."""
    beta2: Annotated[float, Range(minimum=0, below=1)] = 0.95
    """AdamW's memory of squared gradients. 0.95 follows changes sooner than 0.999."""
    weight_decay: NonNegativeFloat = 0.0
    """Pull of the weights to 0. Usually 0 to 0.1."""
    warmup_steps: NonNegativeInt = 0
    """Optimiser steps over which the learning rate rises from 0."""
    max_grad_norm: PositiveFloat | None = 1.0
    """Largest norm of the gradients; larger ones are scaled down to it. None cuts nothing."""
    microbatches: PositiveInt = 1
    """Parts whose gradients are added up to one step, for rows that do not fit into memory at once.
    The result is that of one step on all rows."""
    packed_tokens: NonNegativeInt = 0
    """Tokens of the rows that a forward pass takes, each filled with several rows of a batch that
    do not see each other; 0 pads each row to the longest. It saves time where lengths differ, and
    the results are the same. A number below the longest row stands for it, the quickest on a CPU;
    longer ones cost attention their square, and a GPU fewer calls."""
    precision: Precision = "fp32"
    """Number format of the forward pass, by autocast. bf16 gains nothing on a CPU without AMX."""
    shard: bool = False
    """Whether parameters, gradients and the optimiser's state are split over the ranks (FSDP2), for
    models that do not fit on each; with one rank it changes nothing."""
    gradient_checkpointing: bool = False
    """Whether activations are computed again in the backward pass: less memory, a third slower."""
    device: str = "cpu"
    """Where the model trains, as torch names it."""
    trainer_threads: PositiveInt = 1
    """CPU threads of torch. More than one beside any other load are far slower than one."""
    evaluate_every: PositiveInt = 10_000
    """Samples between two evaluations."""
    evaluate_greedy: bool = False
    """Whether the goal is about answers of the likeliest tokens, or about sampled ones, which
    training improves. The other is in the metrics, too."""
    checkpoint_every: PositiveInt = 100
    """Replays between two checkpoints."""

    def __post_init__(self) -> None:
        check_fields(self)


@dataclass(frozen=True, kw_only=True, slots=True)
class SupervisedPhaseConfig(TokenTrainerConfig):
    """A supervised phase before reinforcement learning."""

    supervised_until: FiniteFloat | None = None
    """Mean reward of likeliest answers at which the supervised phase ends. None leaves it out."""
    supervised_learning_rate: PositiveFloat = 3e-3
    """AdamW's step size in the supervised phase."""
    supervised_batch_size: PositiveInt = 128
    """Demonstrations of one supervised step."""
    supervised_steps: PositiveInt = 20_000
    """Supervised steps after which the run gives up, where the phase does not reach its end."""
    supervised_warmup_steps: NonNegativeInt = 50
    """Supervised steps over which the learning rate rises from 0."""
    supervised_look_every: PositiveInt = 50
    """Supervised steps between two looks at the likeliest answers."""
