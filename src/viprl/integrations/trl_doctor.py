"""``viprl doctor trl``: does this environment run the adaptive trainers, and if not, why?"""

from __future__ import annotations

from collections.abc import Iterator

from viprl.errors import MissingDependencyError
from viprl.integrations.findings import Finding, attempt, version

NEEDED = ("torch", "transformers", "datasets", "accelerate")


def diagnose() -> list[Finding]:
    """All findings, in the order in which problems should be solved."""
    return list(_findings())


def _findings() -> Iterator[Finding]:
    for package in ("trl", *NEEDED):
        found = version(package)
        install = str(MissingDependencyError.of("it", package)).partition(": ")[2]
        yield Finding(package, found is not None, found or f"not installed; {install}")
    if version("trl") is not None:
        yield attempt("what is overridden", _contract)
        yield attempt("devices", _devices)


def _contract() -> str:
    from viprl.integrations.trl.contract import TESTED_TRL, violations
    from viprl.integrations.trl.trainers import AdaptiveGRPOTrainer, AdaptiveRLOOTrainer

    parents = [trainer._parent_class for trainer in (AdaptiveGRPOTrainer, AdaptiveRLOOTrainer)]
    found = [line for parent in parents for line in violations(parent)]
    if found:
        raise LookupError("\n".join([f"tested are {TESTED_TRL}", *found]))
    return f"{' and '.join(parent.__name__ for parent in parents)} are as in {TESTED_TRL}"


def _devices() -> str:
    import torch

    count = torch.cuda.device_count()
    return f"{count} GPU{'s' * (count != 1)}" if count else "no GPU: training needs use_cpu=True and is slow"
