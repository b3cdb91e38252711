"""What is counted of answers that were made, and of those that were refused."""

from __future__ import annotations

from bray_core.errors import BrayError
from bray_core.metrics import record
from bray_model.chat.errors import ApiError, api_error
from bray_model.chat.outcomes import Answered


def counted(outcome: Answered) -> Answered:
    """Count the tokens of an answer, and return it."""
    num_sampled = sum(len(choice.completion) for choice in outcome.choices)
    num_unparsed = sum(choice.num_unparsed for choice in outcome.choices)
    record("chat/prompt_tokens", sum(len(p.ids) for p in outcome.job.prompts), kind="count")
    record("chat/completion_tokens", num_sampled, kind="count")
    if num_unparsed:
        record("chat/unparsed_tool_calls", num_unparsed, kind="count")
    if any(prompt.is_retokenised for prompt in outcome.job.prompts):
        record("chat/retokenised", 1, kind="count")
    return outcome


def refused(error: BrayError) -> ApiError:
    """Count an error in mid-stream, and return it as the API has it."""
    told = api_error(error)
    if not isinstance(told, ApiError):
        told = ApiError(told.code, told.message, status=500)
    record("chat/refused", 1, kind="count", code=told.code)
    return told
