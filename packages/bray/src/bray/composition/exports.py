"""Exports of all policies that a composition has trained."""

from __future__ import annotations

from bray.run import Run
from bray.sources.multi_agent_config import MultiAgentSourceConfig
from bray.sources.source_kind import SourceKindConfig
from bray.templates.composition import Composition
from bray.training.deploy import export_best
from bray_model import ExportReport


def export_all(run: Run, composition: Composition) -> ExportReport | None:
    """Export each learner's policy: the main one's best version, the others' newest.

    Args:
        run: the run that trained them.
        composition: what was trained.

    Returns:
        The report of the main learner's.

    Raises:
        ExportError: an export's outputs differ from torch's.
    """
    main = composition.main
    reports = {
        name: export_best(
            run,
            one.algorithm_class,
            one.model,
            is_main=one is main,
            answers_agents=True,
            agents=_patterns(composition, name),
        )
        for name, one in composition.learners.items()
    }
    return reports[main.name]


def _patterns(composition: Composition, learner: str) -> list[str]:
    """Return the patterns of the agents that a learner plays in environments of several."""
    found = {
        pattern: composition.learner_of(agent)
        for source in composition.sources.values()
        if isinstance(source.config, MultiAgentSourceConfig | SourceKindConfig)
        for pattern, agent in source.agents.items()
    }
    return [pattern for pattern, one in found.items() if one is not None and one.name == learner]
