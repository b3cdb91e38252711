"""One session: an agent program's requests from its first to its end."""

from __future__ import annotations

import time
from collections.abc import Sequence

from bray_model.chat.attempts import Attempts
from bray_model.chat.episodes import ChatEpisode, EpisodeEnd
from bray_model.chat.errors import ApiError
from bray_model.chat.messages import assistant_message, next_digest
from bray_model.chat.outcomes import Answered
from bray_model.chat.sample_tree import SampleNode, SampleTree

_MOST_TEXTS = 64
"""Number of plain completions of a session that a prompt may continue."""


class ChatSession:
    """What is known of one session.

    Args:
        name: Id of the session.
        max_tokens: Largest number of tokens of its rows.
    """

    def __init__(self, name: str, max_tokens: int) -> None:
        self.name = name
        self.began_s = self.last_used_s = time.monotonic()
        self.num_running = 0
        """Number of requests under way."""
        self.attempts = Attempts()
        self.num_turns = 0
        self.num_retokenised = 0
        self.num_retries = 0
        self.num_unparsed = 0
        self._max_tokens = max_tokens
        self._tree = SampleTree()
        self._histories: dict[bytes, SampleNode] = {}
        """The sample that ends each known history, by the history's digest."""
        self._texts: dict[str, SampleNode] = {}
        """The sample that ends each prompt with its completion, as text."""
        self._finish_reasons: list[str] = []

    @property
    def num_tokens(self) -> int:
        """Number of tokens of all rows."""
        return self._tree.row_tokens

    def known(self, digests: Sequence[bytes]) -> tuple[int, SampleNode] | None:
        """Return the longest beginning of a conversation that is known.

        Args:
            digests: Digest of each beginning, the empty one first.

        Returns:
            The number of messages that are known, the last of which is an answer, and its sample.
        """
        if not self._histories:
            return None
        for count in range(len(digests) - 1, 0, -1):
            sample = self._histories.get(digests[count])
            if sample is not None:
                return count, sample
        return None

    def known_text(self, prompt: str) -> tuple[str, SampleNode] | None:
        """Return the longest known prompt with its completion that a prompt begins with."""
        found = [text for text in list(self._texts) if prompt.startswith(text)]
        longest = max(found, key=len, default=None)
        return None if longest is None else (longest, self._texts[longest])

    def known_ids(self, ids: Sequence[int]) -> SampleNode | None:
        """Return the sample whose tokens, from the beginning on, a prompt of ids begins with."""
        best: SampleNode | None = None
        for sample in list(self._texts.values()):
            longer = best is None or sample.num_tokens > best.num_tokens
            size = sample.num_tokens
            if longer and size <= len(ids) and sample.all_ids() == list(ids[:size]):
                best = sample
        return best

    def check_room(self, parent: SampleNode | None, num_tokens: int) -> None:
        """Refuse a turn that the session has no room for. Raises ApiError."""
        wanted = self._tree.more_tokens(parent, num_tokens)
        if self._tree.row_tokens + wanted > self._max_tokens:
            raise ApiError(
                "session_too_long",
                f"session {self.name!r}: expected at most {self._max_tokens} tokens in all its "
                f"segments, has {self._tree.row_tokens} and would get {wanted} more: end it, or "
                "raise max_session_tokens",
            )

    def add_turn(self, outcome: Answered) -> None:
        """Remember the answers to one request."""
        turn, self.num_turns = self.num_turns, self.num_turns + 1
        job = outcome.job
        for index, choice in enumerate(outcome.choices):
            prompt = job.prompt_of(index)
            sample = self._tree.add(prompt.parent, prompt.context_ids, choice.completion, turn)
            if job.is_chat:
                message = assistant_message(choice.content, choice.calls)
                self._histories.setdefault(next_digest(prompt.digest, message), sample)
            else:
                self._texts[prompt.text + choice.content] = sample
                if len(self._texts) > _MOST_TEXTS:
                    del self._texts[next(iter(self._texts))]
            self._finish_reasons.append(choice.finish_reason)
            self.num_unparsed += choice.num_unparsed
        self.num_retokenised += any(prompt.is_retokenised for prompt in job.prompts)

    def episode(
        self, ended_by: EpisodeEnd, reward: float | None, turn_rewards: Sequence[float] | None
    ) -> ChatEpisode:
        """Return all that the session did."""
        return ChatEpisode(
            session=self.name,
            segments=tuple(self._tree.segments()),
            reward=reward,
            turn_rewards=None if turn_rewards is None else tuple(turn_rewards),
            num_turns=self.num_turns,
            num_retokenised=self.num_retokenised,
            num_retries=self.num_retries,
            num_unparsed_calls=self.num_unparsed,
            finish_reasons=tuple(self._finish_reasons),
            duration_s=time.monotonic() - self.began_s,
            ended_by=ended_by,
        )
