"""Infos of many environments, whose values may be of any type and shape.

Imports gymnasium: whoever imports this has it.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
from gymnasium.vector import VectorEnv

_NUMBERS = (bool, int, float, np.number, np.ndarray)


class MixedInfos(VectorEnv[Any, Any, Any]):  # type: ignore[misc]
    """A vector environment that takes infos of any type and shape from its environments.

    Gymnasium makes one array for each key, of the type and shape of the first value. It raises at
    another shape and at None, and cuts off the fraction of 0.5 behind a 0. Where the values of a
    key differ so, its array is of objects here, None for environments that tell none.
    """

    def _add_info(
        self, vector_infos: dict[str, Any], env_info: dict[str, Any], env_num: int
    ) -> dict[str, Any]:
        joined = {}
        for key, value in env_info.items():
            held = vector_infos.get(key)
            if key == "final_obs" or _can_hold(held, value):
                joined[key] = value
                continue
            flags = vector_infos.setdefault(f"_{key}", np.zeros(self.num_envs, np.bool_))
            vector_infos[key] = _objects(held, flags)
            vector_infos[key][env_num] = value
            flags[env_num] = True
        infos: dict[str, Any] = super()._add_info(vector_infos, joined, env_num)
        return infos


def _can_hold(held: Any, value: Any) -> bool:
    """Return whether Gymnasium joins a value with those of its key so far; None: there are none."""
    if type(value) is int and not -(2**63) <= value < 2**63:  # such as a generator's seed
        return False
    if held is None:
        return True
    if isinstance(held, dict) or isinstance(value, dict):
        return isinstance(held, dict) and isinstance(value, dict)
    if held.dtype == object and held.ndim == 1:
        return True
    return (
        isinstance(value, _NUMBERS)
        and np.shape(value) == held.shape[1:]
        and np.can_cast(np.asarray(value).dtype, held.dtype, "same_kind")
    )


def _objects(held: Any, flags: npt.NDArray[np.bool_]) -> npt.NDArray[Any]:
    """Return the values of a key so far as an array of objects, by environment."""
    objects = np.full(len(flags), None, dtype=object)
    for row in np.nonzero(flags)[0].tolist():
        objects[row] = _of_row(held, row)
    return objects


def _of_row(held: Any, row: int) -> Any:
    if not isinstance(held, dict):
        return held[row]
    told = {key: flags for key in held if (flags := held.get(f"_{key}")) is not None}
    return {key: _of_row(held[key], row) for key, flags in told.items() if flags[row]}
