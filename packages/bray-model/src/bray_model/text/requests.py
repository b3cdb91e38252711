"""What a language model is asked for and what it gives: plain data, without torch."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Literal, NamedTuple, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt

from bray_core.errors import ConfigError, SpecError
from bray_core.settings.ranges import NonNegativeInt, PositiveInt, Range, check_fields

FinishReason: TypeAlias = Literal["stop", "length", "cancelled", "error"]
NonNegativeFloat: TypeAlias = Annotated[float, Range(minimum=0)]
TopP: TypeAlias = Annotated[float, Range(above=0, maximum=1)]
MinP: TypeAlias = Annotated[float, Range(minimum=0, maximum=1)]

Penalty: TypeAlias = Annotated[float, Range(minimum=-2, maximum=2)]

MOST_STOPS = 64
"""Largest number of stop strings, and of stop ids, of one request."""


MOST_BIASES = 1024
"""Largest number of tokens with a bias in one request."""


ResponseFormat: TypeAlias = Literal["text", "json_object"]
"""What a completion is: any text, or a JSON object."""


class TokenConstraint(Protocol):
    """What one completion may go on with; follows it from its first token on."""

    def allowed(self, ids: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
        """Return which tokens may follow those that were sampled so far, `[V]`; at least one."""
        ...


class PromptTooLongError(SpecError):
    """A prompt, with the tokens asked for, does not fit into the model's context."""


class MissingChatTemplateError(ConfigError):
    """The model's tokenizer has no chat template, so that messages cannot become a prompt."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Sampling:
    """How the tokens of a completion are chosen.

    The filters work in this order: temperature, top-k, top-p, min-p. Each keeps at least the most
    probable token.

    Raises:
        ConfigError: A value is out of range; names the field.
    """

    max_tokens: PositiveInt = 128
    """Largest number of tokens of the completion, the stop token included."""
    temperature: NonNegativeFloat = 1.0
    """Divisor of the logits before the softmax. Below 1 the probable tokens become more probable;
    0 always takes the most probable one. Typical: 0 to 1; 1 for training."""
    top_k: NonNegativeInt = 0
    """Number of the most probable tokens that are kept; 0 keeps all."""
    top_p: TopP = 1.0
    """The smallest set of most probable tokens is kept whose probabilities sum to at least this
    ("nucleus sampling", Holtzman et al. 2020); 1 keeps all."""
    min_p: MinP = 0.0
    """Tokens less probable than this fraction of the most probable one are dropped; 0 keeps all."""
    seed: int | None = None
    """Seed of this request: the same tokens again, whatever else is in the batch. None: a seed
    that the model derives from its own and from a count of its requests."""
    stop: tuple[str, ...] = ()
    """Strings that end the completion. The text ends before the string that was found; the tokens
    that spell it stay in the completion's ids, since they were sampled."""
    stop_ids: tuple[int, ...] = ()
    """Tokens that end the completion, beside the model's own end-of-text tokens."""
    ignore_eos: bool = False
    """Whether the model's own end-of-text tokens do not end the completion."""
    frequency_penalty: Penalty = 0.0
    """Taken off a token's logit for each time that the completion has it already. Positive numbers
    repeat less; the distribution sampled from is the one after them. -2 to 2."""
    presence_penalty: Penalty = 0.0
    """Taken off the logit of each token that the completion has already. -2 to 2."""
    logit_bias: tuple[tuple[int, float], ...] = ()
    """Token ids and what is added to the logit of each, -100 to 100: these two ends forbid a token
    and force one."""
    response_format: ResponseFormat = "text"
    """`json_object`: only tokens are sampled that keep the completion the beginning of a JSON
    object, and it ends where the object does. At `max_tokens` it is cut all the same. The
    distribution sampled from is that of the allowed tokens."""
    logprobs: NonNegativeInt = 0
    """Number of most probable tokens to report at each position, besides the sampled one."""

    def __post_init__(self) -> None:
        check_fields(self)
        if isinstance(self.seed, bool) or not isinstance(self.seed, int | None):
            raise ConfigError(f"seed: expected an integer or none, got {self.seed!r}")
        object.__setattr__(self, "stop", _strings(self.stop))
        object.__setattr__(self, "stop_ids", _ids("stop_ids", self.stop_ids))
        for name, values in (("stop", self.stop), ("stop_ids", self.stop_ids)):
            if len(values) > MOST_STOPS:
                raise ConfigError(f"{name}: expected at most {MOST_STOPS}, got {len(values)}")
        object.__setattr__(self, "logit_bias", _biases(self.logit_bias))
        if self.response_format == "json_object" and self.ignore_eos:
            raise ConfigError("response_format: JSON ends by itself: leave ignore_eos out")

    @property
    def is_adjusted(self) -> bool:
        """Whether the logits are not sampled from as they are."""
        is_bound = self.response_format != "text"
        penalties = self.frequency_penalty or self.presence_penalty
        return bool(penalties or self.logit_bias or is_bound)


def _biases(given: Sequence[tuple[int, float]]) -> tuple[tuple[int, float], ...]:
    if len(given) > MOST_BIASES:
        raise ConfigError(f"logit_bias: expected at most {MOST_BIASES} tokens, got {len(given)}")
    ids = _ids("logit_bias", [token for token, _ in given])
    if len(set(ids)) < len(ids):
        raise ConfigError("logit_bias: expected each token once")
    for token, bias in given:
        if not -100 <= bias <= 100:
            raise ConfigError(f"logit_bias: expected -100 to 100, got {bias} for token {token}")
    return tuple((token, float(bias)) for token, (_, bias) in zip(ids, given, strict=True))


def _strings(stop: object) -> tuple[str, ...]:
    if isinstance(stop, str) or not isinstance(stop, Sequence):
        raise ConfigError(f"stop: expected a tuple of strings, got {stop!r}")
    for one in stop:
        if not isinstance(one, str) or not one:
            raise ConfigError(f"stop: expected strings that are not empty, got {one!r}")
    return tuple(stop)


def _ids(name: str, values: object) -> tuple[int, ...]:
    if isinstance(values, str) or not isinstance(values, Sequence | np.ndarray):
        raise ConfigError(f"{name}: expected token ids, got {values!r}")
    for one in values:
        if isinstance(one, bool) or not isinstance(one, int | np.integer) or one < 0:
            raise ConfigError(f"{name}: expected token ids, integers of 0 or more, got {one!r}")
    return tuple(map(int, values))


@dataclass(frozen=True, slots=True)
class TextRequest:
    """One prompt, and how to continue it.

    Raises:
        SpecError: The prompt is empty, or holds something else than token ids.
    """

    prompt_ids: tuple[int, ...]
    """Token ids of the prompt; any sequence of integers is taken."""
    sampling: Sampling = Sampling()
    group: Hashable = None
    """Requests of one group that begin alike share the keys and values of what they have in
    common: it is computed once. None: shared with nobody."""
    seed: int | None = None
    """Seed of this request, where many share one `sampling`. None: the seed of `sampling`."""
    constraint: TokenConstraint | None = field(default=None, compare=False)
    """What its tokens are held to; `TextModel` gives it where `sampling` asks for a format."""

    def __post_init__(self) -> None:
        if isinstance(self.seed, bool) or not isinstance(self.seed, int | None):
            raise SpecError(f"seed: expected an integer or none, got {self.seed!r}")
        try:
            prompt = _ids("prompt_ids", self.prompt_ids)
        except ConfigError as error:
            raise SpecError(str(error)) from None
        if not prompt:
            raise SpecError(
                "prompt_ids: the prompt is empty: a model continues at least one token, such as "
                "its beginning-of-text token"
            )
        object.__setattr__(self, "prompt_ids", prompt)
        if not isinstance(self.sampling, Sampling):
            raise SpecError(f"sampling: expected a Sampling, got {self.sampling!r}")

    def check_fits(self, context_length: int, vocab_size: int) -> None:
        """Refuse a prompt that a model cannot take.

        Args:
            context_length: Largest number of tokens of prompt and completion together.
            vocab_size: Number of token ids.

        Raises:
            PromptTooLongError: The prompt leaves no room for a token.
            SpecError: A token is beyond the vocabulary.
        """
        length = len(self.prompt_ids)
        if length >= context_length:
            raise PromptTooLongError(
                f"prompt_ids: the prompt has {length} tokens, which leaves no room in the context "
                f"of {context_length}: shorten it, or raise context_length or cache_bytes if they "
                "are what bounds it"
            )
        most = max(self.prompt_ids)
        if most >= vocab_size:
            raise SpecError(
                f"prompt_ids: token {most} is beyond the vocabulary of {vocab_size}: does the "
                "tokenizer belong to this model?"
            )

        beyond = [token for token, _ in self.sampling.logit_bias if token >= vocab_size]
        if beyond:
            raise SpecError(
                f"logit_bias: token {beyond[0]} is beyond the vocabulary of {vocab_size}"
            )

    def check_held(self) -> None:
        """Refuse a format that nothing holds the tokens to. Raises SpecError."""
        if self.constraint is None and self.sampling.response_format != "text":
            raise SpecError(
                f"response_format: this engine does not serve {self.sampling.response_format!r} "
                "by itself: ask a TextModel with the torch engine"
            )

    @property
    def own_seed(self) -> int | None:
        """Seed of this request, or of its `sampling`; None: the model derives one."""
        return self.sampling.seed if self.seed is None else self.seed


class Token(NamedTuple):
    """One sampled token."""

    id: int
    logprob: float
    """Natural logarithm of its probability under the distribution that it was sampled from: after
    temperature and filters; 0 at temperature 0."""
    raw_logprob: float
    """The same under the plain softmax of the logits, at temperature 1."""
    version: int
    """Version of the weights that computed it."""
    top: tuple[tuple[int, float], ...] = ()
    """The most probable tokens, the first one first: id and raw log-probability; as many as
    `Sampling.logprobs` asks for."""


class TextPiece(NamedTuple):
    """A piece of a completion that is streamed."""

    text: str
    """Text that is new and certain; empty while a character or a stop string is incomplete."""
    tokens: tuple[Token, ...]
    """Tokens that are new. Their text may come with a later piece."""


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Completion:
    """What a model made of a prompt; arrays are `[T]` over the sampled tokens."""

    prompt_ids: tuple[int, ...]
    ids: npt.NDArray[np.int64]
    """Sampled token ids, the one that ended the completion included."""
    logprobs: npt.NDArray[np.float32]
    """`Token.logprob` of each."""
    raw_logprobs: npt.NDArray[np.float32]
    """`Token.raw_logprob` of each."""
    versions: npt.NDArray[np.int64]
    """Version of the weights that computed each."""
    finish_reason: FinishReason
    """`stop`: a stop token or string; `length`: `max_tokens`, or the context is full."""
    text: str = ""
    """The text without special tokens, up to the stop string if one was found."""
    top: tuple[tuple[tuple[int, float], ...], ...] = ()
    """`Token.top` of each, if the request asked for any."""
    error: str | None = None
    """What went wrong, where the finish reason is `error`."""
    num_shared: int = 0
    """Tokens of the prompt whose keys and values were taken from another request."""

    def __len__(self) -> int:
        return len(self.ids)

    def tokens(self) -> list[Token]:
        """Return the sampled tokens one by one."""
        tops = self.top or ((),) * len(self.ids)
        columns = (self.ids, self.logprobs, self.raw_logprobs, self.versions)
        return [Token(*row) for row in zip(*(c.tolist() for c in columns), tops, strict=True)]
