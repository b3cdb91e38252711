"""What is made for one request: its job, and the answers to it."""

from __future__ import annotations

import dataclasses
import secrets
import time
from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field

from bray_model.chat.arrivals import Arrival
from bray_model.chat.prompts import Prompt
from bray_model.chat.request_bodies import Body, ChatBody
from bray_model.chat.tool_calls import ToolCallContent
from bray_model.text.requests import Completion, TextRequest


@dataclass(slots=True)
class AnswerJob:
    """One request that is ready to be generated for."""

    body: Body
    prompts: Sequence[Prompt]
    requests: Sequence[TextRequest]
    """One for each answer: `n` for each prompt, those of one prompt together."""
    model: str
    version: int
    arrival: Arrival | None = None
    """What lets the same request wait until this one is worked on; None: it has no session."""
    num_choices: int = 0
    """Number of answers."""
    id: str = ""
    created: int = field(default_factory=lambda: int(time.time()))

    def __post_init__(self) -> None:
        self.num_choices = len(self.requests)
        self.id = f"{'chatcmpl' if self.is_chat else 'cmpl'}-{secrets.token_hex(12)}"

    @property
    def is_chat(self) -> bool:
        """Whether messages were sent, and not a plain prompt."""
        return isinstance(self.body, ChatBody)

    @property
    def has_tools(self) -> bool:
        """Whether calls of tools are looked for in the text."""
        body = self.body
        return isinstance(body, ChatBody) and bool(body.tools) and body.tool_choice != "none"

    def prompt_of(self, index: int) -> Prompt:
        """Return the prompt of an answer."""
        return self.prompts[index // (self.body.n or 1)]


@dataclass(slots=True)
class Choice:
    """One answer."""

    content: str
    """Text without the calls of tools."""
    calls: list[ToolCallContent]
    completion: Completion
    num_unparsed: int = 0
    """Number of calls in the text that could not be read."""

    @property
    def finish_reason(self) -> str:
        """Why the answer is over, as the API says it."""
        return "tool_calls" if self.calls else self.completion.finish_reason


@dataclass(slots=True)
class Answered:
    """All answers to one request."""

    job: AnswerJob
    choices: list[Choice]

    def compact(self) -> None:
        """Drop what no reply needs: the answers are kept for requests that are sent again."""
        job = self.job
        job.requests = ()
        job.prompts = [
            prompt._replace(ids=array("i", prompt.ids), parent=None, context_ids=())
            for prompt in job.prompts
        ]
        for choice in self.choices:
            choice.completion = dataclasses.replace(choice.completion, prompt_ids=())

    def usage(self) -> dict[str, object]:
        """Return how many tokens were read and sampled."""
        read = sum(len(prompt.ids) for prompt in self.job.prompts)
        sampled = sum(len(choice.completion) for choice in self.choices)
        # The answers to one prompt share it: what none of them had to compute was there before.
        size = len(self.choices) // len(self.job.prompts)
        shared = sum(
            min(choice.completion.num_shared for choice in self.choices[first : first + size])
            for first in range(0, len(self.choices), size)
        )
        return {
            "prompt_tokens": read,
            "completion_tokens": sampled,
            "total_tokens": read + sampled,
            "prompt_tokens_details": {"cached_tokens": shared},
        }
