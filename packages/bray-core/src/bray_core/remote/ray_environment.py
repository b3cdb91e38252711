"""Environment variables that Ray reads when it is imported: they are set before any such import."""

from __future__ import annotations

import os
import sys


def prepare() -> None:
    """Set variables that Ray needs here; those that are set already stay as they are."""
    # Under `uv run` Ray would rebuild the environment in every worker, which takes minutes.
    os.environ.setdefault("RAY_ENABLE_UV_RUN_RUNTIME_ENV", "0")
    # A cluster of `ray start` asks for the user's token where there is one; a driver sends it
    # unasked only to a cluster that it starts. A Ray that is imported already has made up its
    # mind, and would not send it to its own either.
    token = os.path.expanduser("~/.ray/auth_token")  # `pathlib` takes long to load
    if "ray" not in sys.modules and os.path.isfile(token):
        os.environ.setdefault("RAY_AUTH_MODE", "token")
