"""A training in processes of its own, watched from outside: by what it writes and by /proc.

Shared by `benchmarks/chaos.py`, `benchmarks/control_plane.py` and `tests/slow`.
"""

from watched.machine import Held, Machine
from watched.training import Training

__all__ = ["Held", "Machine", "Training"]
