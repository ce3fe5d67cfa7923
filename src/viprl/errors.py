"""The errors that viprl raises. Each is also the built-in exception that a caller would expect."""

from __future__ import annotations

import difflib
import re
import shlex
from collections.abc import Iterable
from importlib import metadata, util


class ViprlError(Exception):
    """Base of every error that viprl raises on purpose."""


class InvalidInputError(ViprlError, ValueError):
    """An argument breaks a rule; the message states the rule, then the values."""


class ConfigurationError(InvalidInputError):
    """Settings that contradict each other or that a trainer cannot honour."""


class InfeasibleBudgetError(ConfigurationError):
    """No group sizes within the bounds add up to the budget."""


class UnknownPromptError(ViprlError, KeyError):
    """A prompt_id that the predictor was not built for."""

    def __str__(self) -> str:  # KeyError would print the message's repr
        return str(self.args[0]) if self.args else ""


class PlanError(ViprlError, RuntimeError):
    """A plan used against the protocol: observed twice, or by another allocator."""


class CheckpointError(ViprlError, ValueError):
    """A checkpoint that is damaged, of another format, or that does not fit the objects it is loaded into."""


class MissingDependencyError(ViprlError, ImportError):
    """Optional packages are needed; the message has the line that installs them."""

    @classmethod
    def of(cls, what: str, *packages: str) -> MissingDependencyError:
        """The error of something that needs packages, by the names under which they are installed.

        The line to type names the packages themselves, in the versions that viprl's own metadata ask for, so that it
        works wherever viprl came from.

        >>> print(MissingDependencyError.of("reading parquet", "pyarrow"))
        reading parquet needs pyarrow: pip install 'pyarrow>=14.0'
        """
        wanted = {re.split(r"[^\w.-]", line)[0]: line.partition(";")[0].strip() for line in _requirements()}
        line = " ".join(shlex.quote(wanted.get(package, package)) for package in packages)
        return cls(f"{what} needs {' and '.join(packages)}: pip install {line}")


def require(what: str, **packages: str) -> None:
    """Say what is missing before anything is computed or written.

    Args:
        what: that needs them.
        packages: module = the package that brings it.

    Raises:
        MissingDependencyError: a module is not installed.
    """
    missing = [package for module, package in packages.items() if util.find_spec(module) is None]
    if missing:
        raise MissingDependencyError.of(what, *missing)


def _requirements() -> list[str]:
    try:
        return metadata.requires("viprl") or []
    except metadata.PackageNotFoundError:  # run from its sources
        return []


def nearest(name: object, known: Iterable[str]) -> str:
    """``; nearest: 'name'``, the end of a refusal; empty where no known name is like this one."""
    close = difflib.get_close_matches(str(name), list(known), n=1)
    return f"; nearest: {close[0]!r}" if close else ""
