"""Checks of what an allocator is given, with errors that say what to pass."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from viprl._arrays import FloatArray
from viprl.errors import InvalidInputError


def part(value: Any, base: Any, name: str, example: str) -> Any:
    """An object of ``base``: the value itself, or one in front of it where it only has what ``base`` leaves open.

    Subclassing ``base`` is the way to write a part. An object that has its abstract methods without that is taken too;
    the hooks that it lacks are then those of ``base``, which do nothing.

    Raises:
        TypeError: ``value`` is a name, a class, or lacks a method.
    """
    if isinstance(value, base):
        return value
    open_names = sorted(base.__abstractmethods__)
    if isinstance(value, type):
        got = f"the class {value.__name__}; make an object of it, {value.__name__}(...)"
    elif isinstance(value, str):
        got = f"the name {value!r}; names are for viprl.build_allocator(prompts, viprl.AllocationSettings(...))"
    elif lacking := [method for method in open_names if not callable(getattr(value, method, None))]:
        got = f"{type(value).__name__}, which has no {', '.join(lacking)}"
    else:
        return _behind(value, base)
    raise TypeError(f"`{name}` must be a {base.__name__}, such as {example}, but got {got}")


def _behind(value: Any, base: Any) -> Any:
    """An object of ``base`` that hands on to ``value`` all that it has."""

    def handed_on(attribute: str) -> property:
        return property(lambda self: getattr(value, attribute))

    shared = [a for a in dir(base) if not a.startswith("_") and hasattr(value, a)]
    shared += [a for a in getattr(base, "__annotations__", {}) if a not in shared and hasattr(value, a)]
    own = {
        "__getattr__": lambda self, attribute: getattr(value, attribute),
        "__repr__": lambda self: repr(value),
    }
    return type(type(value).__name__, (base,), {**{a: handed_on(a) for a in shared}, **own})()


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


def named(prompt_ids: Sequence[str | int]) -> tuple[str | int, ...]:
    ids = tuple(prompt_ids)
    if not ids:
        raise InvalidInputError("a step must have at least one prompt, but got none")
    return ids
