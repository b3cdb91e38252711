"""Hyperparameter search with Ray Tune: `bray.tune.trainable`. Needs the extra `tune`."""

from typing import TYPE_CHECKING

from bray_core import lazy

if TYPE_CHECKING:
    from bray.tune.remote import trainable

__all__ = ["trainable"]

__getattr__, __dir__ = lazy.attach(__name__, {"trainable": "bray.tune.remote"})
