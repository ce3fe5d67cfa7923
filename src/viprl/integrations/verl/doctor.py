"""``viprl doctor verl``: does this environment run adaptive rollouts, and if not, why?

verl hides a plugin's import error at debug level and then reports an unknown trainer; this shows the error.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import warnings
from collections.abc import Iterator
from importlib import metadata

from viprl.integrations.findings import Finding, attempt, numbers, version
from viprl.integrations.verl import TRAINER_MODE, contract

ENTRY_POINT = ("verl.plugins", "viprl", "viprl.integrations.verl.plugin")


def diagnose() -> list[Finding]:
    """All findings, in the order in which problems should be solved."""
    findings = [finding for check in (_packages, _entry_point, _policy) for finding in check()]
    if version("verl") is not None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # verl warns about every engine that is not installed
            findings.extend(finding for check in (_import, _registered, _drift) for finding in check())
    return findings


def _packages() -> Iterator[Finding]:
    verl = version("verl")
    if verl is None:
        yield Finding("verl", False, f"not installed; pip install 'verl{contract.VERL_RANGE}'")
        return
    tested = verl in contract.VERL_TESTED
    inside = numbers("0.9.1") <= numbers(verl) < numbers("0.10")
    yield Finding("verl", inside, f"{verl} ({'tested' if tested else f'tested are {contract.VERL_TESTED}'})")
    transformers = version("transformers")
    good = transformers is not None and numbers(transformers) < numbers(contract.TRANSFORMERS_BELOW)
    yield Finding("transformers", good, f"{transformers}; verl 0.9 needs a version below {contract.TRANSFORMERS_BELOW}")
    queue = version("TransferQueue")
    good = queue is not None and numbers(queue) >= numbers(contract.TRANSFER_QUEUE_FROM)
    yield Finding("TransferQueue", good, f"{queue}; the V1 trainer needs {contract.TRANSFER_QUEUE_FROM} or newer")
    missing = [name for name in contract.REQUIRED if importlib.util.find_spec(name) is None]
    detail = f"missing: {', '.join(missing)}" if missing else f"{len(contract.REQUIRED)} found"
    yield Finding("packages of the V1 trainer", not missing, detail)


def _entry_point() -> Iterator[Finding]:
    group, name, value = ENTRY_POINT
    found = [point.value for point in metadata.entry_points(group=group) if point.name == name]
    advice = "install viprl into this environment: pip install PATH/TO/viprl"
    detail = f"{group}: {name} = {value}" if value in found else f"no {name!r} in {group!r}; {advice}"
    yield Finding("entry point", value in found, detail)


def _policy() -> Iterator[Finding]:
    policy = os.environ.get("VERL_USE_EXTERNAL_PLUGINS", "auto").strip()
    names = [name.strip() for name in policy.split(",")]
    yield Finding(
        "VERL_USE_EXTERNAL_PLUGINS",
        policy.lower() == "auto" or "viprl" in names,
        f"{policy!r}; 'auto' or a list with 'viprl' loads the plugin (in the environment of every Ray node)",
    )


def _import() -> Iterator[Finding]:
    yield attempt("import of the plugin", lambda: importlib.import_module(ENTRY_POINT[2]).__name__)


def _registered() -> Iterator[Finding]:
    def names() -> str:
        from verl.trainer.ppo.core_algos import ADV_ESTIMATOR_REGISTRY
        from verl.trainer.ppo.v1 import get_trainer_cls

        from viprl.integrations.verl.checks import OWN_ESTIMATORS, ROLLOUT_ESTIMATORS

        trainer = get_trainer_cls(TRAINER_MODE)
        absent = [name for name in (*OWN_ESTIMATORS, *ROLLOUT_ESTIMATORS) if name not in ADV_ESTIMATOR_REGISTRY]
        if absent:
            raise LookupError(f"estimators not registered: {absent}")
        return f"trainer_mode={TRAINER_MODE} is {trainer.__name__}; estimators {', '.join(OWN_ESTIMATORS)}"

    yield attempt("registration", names)


def _drift() -> Iterator[Finding]:
    def lines() -> str:
        found = contract.drift()
        if found:
            raise LookupError("\n".join(found))
        return f"{len(contract.SIGNATURES) + len(contract.SOURCES)} places of verl are as in {contract.VERL_TESTED}"

    yield attempt("what is overridden", lines)
