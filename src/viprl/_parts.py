"""Checks of what an allocator is given, with errors that say what to pass."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from viprl._arrays import FloatArray
from viprl.errors import InvalidInputError


def check_part(value: Any, base: type, name: str, example: str) -> None:
    """Refuse anything but an object of a subclass of ``base``.

    Objects that only look right are refused too: an allocator calls every hook of the base class, and inheriting them
    is what gives an object those that it need not write.

    Raises:
        TypeError: ``value`` is a name, a class, or something else.
    """
    if isinstance(value, base):
        return
    if isinstance(value, type):
        got = f"the class {value.__name__}; make an object of it, {value.__name__}(...)"
    elif isinstance(value, str):
        got = f"the name {value!r}; names are for viprl.build_allocator(prompts, viprl.AllocationSettings(...))"
    else:
        got = f"{type(value).__name__}; a {name} of your own must be a subclass of {base.__module__}.{base.__name__}"
    raise TypeError(f"`{name}` must be a {base.__name__}, such as {example}, but got {got}")


def check_bounds(low: int, high: int, reward_values: tuple[float, float] | None, success_at: float | None) -> None:
    if not 1 <= low <= high:
        raise InvalidInputError(
            f"1 <= min_group_size <= max_group_size must hold, but got (min_group_size={low}, max_group_size={high})"
        )
    if reward_values is not None and not reward_values[0] < reward_values[1]:
        raise InvalidInputError(f"reward_values must be (failure, success) in ascending order, got {reward_values}")
    if success_at is not None and (reward_values is not None or not np.isfinite(success_at)):
        raise InvalidInputError(
            "`success_at` must be a finite number, given without `reward_values`, but got "
            f"(success_at={success_at}, reward_values={reward_values})"
        )


def per_group(name: str, values: ArrayLike | None, length: int) -> FloatArray | None:
    array = None if values is None else np.asarray(values, dtype=np.float64)
    if array is not None and array.shape != (length,):
        raise InvalidInputError(f"`{name}` must have shape ({length},), but got {array.shape}")
    return array
