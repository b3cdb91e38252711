"""Samples of a policy: token rows with a mask of the policy's own tokens, a reward and a group."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt


@dataclass(frozen=True, kw_only=True, slots=True)
class TokenRow:
    """One segment of a session: token ids as the engine saw them, `[T]` each."""

    tokens: npt.NDArray[np.int32]
    """Token ids of the prompt and of all turns in their order."""
    mask: npt.NDArray[np.bool_]
    """True where the policy sampled the token itself."""
    log_prob: npt.NDArray[np.float32]
    """Log probability under the distribution that was sampled from; 0 where not own."""
    version: npt.NDArray[np.int32]
    """Version of the weights that sampled the token; 0 where not own."""

    def __len__(self) -> int:
        return len(self.tokens)

    @property
    def oldest_version(self) -> int:
        """The oldest version that sampled a token of this row; 0 where it has no own token."""
        return int(self.version[self.mask].min()) if self.mask.any() else 0

    @classmethod
    def of_demonstration(cls, tokens: Sequence[int], mask: Sequence[bool]) -> TokenRow:
        """Return a row that no policy sampled: its masked tokens are to be learnt.

        Args:
            tokens: token ids, `[T]`.
            mask: true for the tokens to learn, `[T]`.
        """
        size = len(tokens)
        return cls(
            tokens=np.asarray(tokens, np.int32),
            mask=np.asarray(mask, np.bool_),
            log_prob=np.zeros(size, np.float32),
            version=np.zeros(size, np.int32),
        )

    @classmethod
    def of_answer(
        cls, prompt: Sequence[int], answer: Sequence[int], log_prob: Sequence[float], version: int
    ) -> TokenRow:
        """Return the row of one answer to one prompt.

        Args:
            prompt: token ids that the policy was given.
            answer: token ids that it sampled.
            log_prob: log probability of each of these.
            version: version of the weights that sampled them.
        """
        before, own = len(prompt), len(answer)
        return cls(
            tokens=np.asarray([*prompt, *answer], np.int32),
            mask=np.asarray([False] * before + [True] * own, np.bool_),
            log_prob=np.asarray([0.0] * before + [*log_prob], np.float32),
            version=np.asarray([0] * before + [version] * own, np.int32),
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class TextSample:
    """One answer, or one session of several turns, with what it earned."""

    rows: tuple[TokenRow, ...]
    """Its segments. There is one, unless the history of a session did not extend itself."""
    reward: float
    """Reward of the whole sample."""
    group: int
    """Number of the samples that it is compared with, such as those of the same prompt."""
    is_cut: bool = False
    """Whether the last answer ended because it had no tokens left."""

    @property
    def num_own_tokens(self) -> int:
        """Number of tokens that the policy sampled."""
        return sum(int(row.mask.sum()) for row in self.rows)
