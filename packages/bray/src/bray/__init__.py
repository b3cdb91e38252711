"""Train reinforcement-learning agents and put them in production: the umbrella package.

Re-exports the public names of the seven packages, loaded when first used, and adds `init`, the
switch between one process and a Ray cluster, `train` and `load`, which return a trained
policy, and `search`, which looks for settings.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from bray_core import lazy

if TYPE_CHECKING:
    from bray.callbacks import Callback
    from bray.run import Run, init
    from bray.searching.program import search
    from bray.trained.programs import load, train
    from bray_actor import Actor
    from bray_actor.remote import RemoteActor
    from bray_buffer import Buffer
    from bray_buffer.remote import RemoteBuffer
    from bray_core.runtime import shutdown
    from bray_model import Model
    from bray_model.remote import RemoteModel
    from bray_server import Server
    from bray_server.remote import RemoteServer
    from bray_trainer import Trainer
    from bray_trainer.remote import RemoteTrainer

_HOME = {
    "Actor": "bray_actor",
    "Buffer": "bray_buffer",
    "Callback": "bray.callbacks",
    "Model": "bray_model",
    "RemoteActor": "bray_actor.remote",
    "RemoteBuffer": "bray_buffer.remote",
    "RemoteModel": "bray_model.remote",
    "RemoteServer": "bray_server.remote",
    "RemoteTrainer": "bray_trainer.remote",
    "Run": "bray.run",
    "Server": "bray_server",
    "Trainer": "bray_trainer",
    "init": "bray.run",
    "load": "bray.trained.programs",
    "search": "bray.searching.program",
    "shutdown": "bray_core.runtime",
    "train": "bray.trained.programs",
}

__all__ = [
    "Actor",
    "Buffer",
    "Callback",
    "Model",
    "RemoteActor",
    "RemoteBuffer",
    "RemoteModel",
    "RemoteServer",
    "RemoteTrainer",
    "Run",
    "Server",
    "Trainer",
    "init",
    "load",
    "search",
    "shutdown",
    "train",
]


__getattr__, __dir__ = lazy.attach(__name__, _HOME)
