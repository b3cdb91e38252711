"""Checks of weights against the names, dtypes and shapes that a network has."""

from __future__ import annotations

from collections.abc import Mapping

from bray_core import nested
from bray_core.errors import SpecError
from bray_core.nested import Nested
from bray_core.protocols import Weights


def weights_spec(weights: Weights) -> Nested:
    """Return name → `ArraySpec`."""
    return nested.spec(dict(weights))


def check_weights(weights: Weights, spec: Nested) -> None:
    """Check weights against the spec of others.

    Raises:
        SpecError: a parameter is missing, unexpected, or of another dtype or shape; names it.
    """
    if not isinstance(weights, Mapping):
        raise SpecError(f"weights: expected name → array, got {type(weights).__name__}")
    nested.check(dict(weights), spec, name="weights")
