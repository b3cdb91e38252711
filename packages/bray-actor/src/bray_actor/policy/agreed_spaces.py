"""A policy's spaces beside those that sessions tell in their `start`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from bray_actor.policy.session_start import told_spaces
from bray_core.errors import ServiceError
from bray_core.spaces import Spaces


class AgreedSpaces:
    """Compares what sessions tell of their spaces with those of their policy.

    Args:
        spaces: What the policy sees and may do; None agrees with all.
    """

    def __init__(self, spaces: Spaces | None) -> None:
        self._spaces = spaces
        self._agreed: Mapping[str, Any] | None = None
        """Spaces as the last session told them, which are those of the policy."""

    def check(self, session: str, described: Mapping[str, Any] | None) -> None:
        """Compare what a session tells, if it does.

        Args:
            session: Id of the session, for messages.
            described: The spaces, in the words of `bray_core.spaces`; None: it tells nothing.

        Raises:
            ServiceError: `bad_spaces`: they are none, or others than the policy's.
        """
        if described is None or described == self._agreed or self._spaces is None:
            return
        told = told_spaces(f"start of session {session[:100]!r}", described)
        if (difference := self._spaces.difference(told)) is not None:
            raise ServiceError("bad_spaces", difference)
        self._agreed = described
