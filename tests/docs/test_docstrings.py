"""Every exported name says what it is; an array parameter of an exported function has its shape said."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
import re
from collections.abc import Iterator
from typing import Any

import pytest

import viprl

TRAINER_ONLY = "viprl.integrations.verl"  # imports verl and ray


def exported() -> Iterator[tuple[str, Any]]:
    """(dotted name, object) of every function and class in the ``__all__`` of a public module, once each."""
    seen: set[int] = set()
    for module in sorted(pkgutil.walk_packages(viprl.__path__, "viprl."), key=lambda module: module.name):
        if any(part.startswith("_") for part in module.name.split(".")) or module.name.startswith(f"{TRAINER_ONLY}."):
            continue
        loaded = importlib.import_module(module.name)
        for name in getattr(loaded, "__all__", ()):
            thing = getattr(loaded, name)
            if (inspect.isclass(thing) or inspect.isfunction(thing)) and id(thing) not in seen:
                seen.add(id(thing))
                yield f"{module.name}.{name}", thing


def methods(owner: type) -> Iterator[tuple[str, Any, Any]]:
    """(name, function, as found on the class) of what a class itself defines for others."""
    for name, value in vars(owner).items():
        function = value.fget if isinstance(value, property) else getattr(value, "__func__", value)
        # a conformance test's name is its statement
        if inspect.isfunction(function) and not name.startswith(("_", "test_")):
            yield name, function, getattr(owner, name)


NAMES = dict(exported())


def test_there_is_something_to_look_at() -> None:
    assert len(NAMES) > 150 and "viprl.evaluation.pass_at_k" in NAMES


@pytest.mark.parametrize("name", NAMES)
def test_has_a_docstring(name: str) -> None:
    thing = NAMES[name]
    assert (thing.__doc__ or "").strip(), f"{name} has no docstring"
    if inspect.isclass(thing):
        silent = [method for method, _, found in methods(thing) if not (inspect.getdoc(found) or "").strip()]
        assert not silent, f"{name}: no docstring for {silent}"


@pytest.mark.parametrize("name", [name for name, thing in NAMES.items() if inspect.isfunction(thing)])
def test_shapes_of_arrays_are_said(name: str) -> None:
    function = NAMES[name]
    arrays = [
        parameter.name
        for parameter in inspect.signature(function).parameters.values()
        if "Array" in str(parameter.annotation)
    ]
    document = inspect.getdoc(function) or ""
    shaped = re.search(r"\(([A-Z]\w*|<?=? ?\w+),[^)]*\)|number or array", document)
    assert not arrays or shaped, f"{name} does not say the shapes of {arrays}"
