"""What a session at the endpoint leaves behind: its tokens as the engine saw them, and its reward.

An episode is one life of an agent program: the requests of one session, from the first one to its
end. A turn is one answered request of it. Token ids are never computed again from text: what was
sampled stands here as it was sampled.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, TypeAlias

import numpy as np
import numpy.typing as npt

EpisodeEnd: TypeAlias = Literal["ended", "timeout", "full", "lost", "shutdown"]
"""Why an episode is over: its program said so; the session was at rest or open for too long; room
was needed for a newer session; the connection of its game server was lost; the server stopped."""

NO_TURN = -1
"""Turn and version of a token that was not sampled."""


@dataclass(frozen=True, kw_only=True, slots=True)
class TokenSegment:
    """One row to train on: the tokens of a conversation from its first to its last, T of them.

    Several segments of an episode may begin with the same tokens, such as branches of concurrent
    requests. A sampled token is `is_own` in exactly one of them; in the others it is context.
    """

    token_ids: npt.NDArray[np.int32]
    """Ids of all tokens `[T]`: prompts, what the environment said, and what was sampled."""
    is_own: npt.NDArray[np.bool_]
    """Whether each token `[T]` was sampled from the policy and is to be trained on."""
    log_probs: npt.NDArray[np.float32]
    """Log-probability of each own token `[T]` under the distribution that it was sampled from,
    after temperature and truncation; 0 for all others."""
    raw_log_probs: npt.NDArray[np.float32]
    """Log-probability of each own token `[T]` under the model itself, at temperature 1 and without
    truncation; 0 for all others."""
    versions: npt.NDArray[np.int64]
    """Version of the weights that sampled each own token `[T]`; `NO_TURN` for all others."""
    turns: npt.NDArray[np.int32]
    """Index of the turn that sampled each own token `[T]`; `NO_TURN` for all others."""

    def __len__(self) -> int:
        return len(self.token_ids)

    @property
    def num_own(self) -> int:
        """Number of own tokens."""
        return int(self.is_own.sum())


@dataclass(frozen=True, kw_only=True, slots=True)
class ChatEpisode:
    """All that one session did, and how well."""

    session: str
    """Id of the session. Ids may come again: each `end` closes an episode, not an id."""
    segments: tuple[TokenSegment, ...]
    """Rows to train on, each with at least one own token."""
    reward: float | None
    """Reward of the whole episode, the sum of `turn_rewards` where those were given; None: nobody
    gave one, for instance because the session timed out."""
    turn_rewards: tuple[float, ...] | None
    """Reward of each turn; None: one reward was given for the whole episode."""
    num_turns: int
    """Number of requests that were answered."""
    num_retokenised: int
    """Number of turns whose conversation did not extend a known one and was rendered anew, so that
    earlier answers in it are context, not own tokens."""
    num_retries: int
    """Number of requests that were sent again and got the answer that was there."""
    num_unparsed_calls: int
    """Number of tool calls that could not be parsed and were given back as plain text."""
    finish_reasons: tuple[str, ...]
    """Why sampling ended, for each sample in the order of the turns: `stop`, `length`,
    `tool_calls`."""
    duration_s: float
    """Seconds from the first request to the end."""
    ended_by: EpisodeEnd

    @property
    def num_own(self) -> int:
        """Number of sampled tokens in all segments."""
        return sum(segment.num_own for segment in self.segments)


EpisodeListener: TypeAlias = Callable[[ChatEpisode], None]
"""Takes an episode that is over. It is called on the server's event loop: it must return at once,
for instance by putting the episode into a queue."""
