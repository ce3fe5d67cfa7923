"""What ``viprl doctor`` finds, for every integration."""

from __future__ import annotations

import re
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from importlib import metadata


@dataclass(frozen=True)
class Finding:
    """One check: what was looked at, whether it holds, and what to know or do."""

    name: str
    ok: bool
    detail: str


def report(findings: list[Finding]) -> str:
    """The findings as text, one line each, details indented."""
    lines = []
    for finding in findings:
        detail = finding.detail.replace("\n", "\n        ")
        lines.append(f"{'ok  ' if finding.ok else 'FAIL'}  {finding.name}: {detail}")
    bad = sum(not finding.ok for finding in findings)
    lines.append(f"{bad} of {len(findings)} checks failed" if bad else f"all {len(findings)} checks passed")
    return "\n".join(lines)


def attempt(name: str, call: Callable[[], str]) -> Finding:
    """A check that succeeds with a detail, or raises: LookupError with words, else the traceback is shown."""
    try:
        return Finding(name, True, call())
    except LookupError as error:
        return Finding(name, False, str(error))
    except Exception:
        return Finding(name, False, traceback.format_exc().rstrip())


def version(package: str) -> str | None:
    """The installed version; None without one."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def numbers(version: str) -> tuple[int, ...]:
    """A version's first three numbers, to compare."""
    return tuple(int(number) for number in re.findall(r"\d+", version.split("+")[0])[:3])
