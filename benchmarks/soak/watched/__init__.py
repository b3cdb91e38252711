"""A training in processes of its own, watched from outside: by what it writes and by /proc.

Shared by `benchmarks/soak` and `tests/slow`.
"""

from benchmarks.soak.watched.machine import Held, Machine
from benchmarks.soak.watched.training import Training

__all__ = ["Held", "Machine", "Training"]
