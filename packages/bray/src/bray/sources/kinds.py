"""The kinds of sources that a template names: `kind: gamecores`.

These are bray's own. Another distribution declares a `SourceKind` as an entry point of
`bray.sources`; one of your own is named `module:Class`: see `bray.sources.source_kind`.
"""

from __future__ import annotations

from typing import Any, ClassVar

from bray.sources.config import FrameSourceConfig
from bray.sources.multi_agent_config import MatchesSourceConfig, MultiAgentSourceConfig


class EnvironmentsKind:
    """Gymnasium environments, stepped in the workers."""

    Config: ClassVar[type[Any]] = FrameSourceConfig


class GamecoresKind:
    """Environments of other processes, or simulators of your own, which call over the wire."""

    Config: ClassVar[type[Any]] = FrameSourceConfig


class AgentsKind:
    """Games of several agents, each answered by a policy of its own or by one that they share."""

    Config: ClassVar[type[Any]] = MultiAgentSourceConfig


class MatchesKind:
    """Matches of learners against themselves, their past versions, and each other."""

    Config: ClassVar[type[Any]] = MatchesSourceConfig
