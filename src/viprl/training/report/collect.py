"""Numbers of a job's runs, read back from their folders.

Notation: k successes of n rollouts in a group; f the variance model's factor, v = p(1-p) f(n).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from viprl._arrays import FloatArray
from viprl.evaluation import Interval, bootstrap_interval, paired_bootstrap_interval
from viprl.history import parts, read_part
from viprl.integrations.trl.mixin import HISTORY_FOLDER
from viprl.training.run import Run
from viprl.variance import RLOO, DrGRPO

OVERHEAD = "viprl/overhead_seconds"


@dataclass(frozen=True)
class RunData:
    """One run as tables.

    Attributes:
        steps: one row a logged step, from metrics.jsonl.
        heldout: one row an evaluation: step, heldout/sampled, heldout/greedy.
        history: one row a prompt and step, the history schema.
        summary: what the run wrote at its end; None while unfinished.
    """

    run: Run
    steps: pd.DataFrame
    heldout: pd.DataFrame
    history: pd.DataFrame
    summary: dict[str, Any] | None

    @property
    def label(self) -> str:
        return self.run.name


def read_run(run: Run) -> RunData:
    """All tables of one run; only steps that were logged count."""
    rows = run.metrics.read()
    steps = pd.DataFrame([row for row in rows if "reward" in row])
    heldout = pd.DataFrame([row for row in rows if "heldout/sampled" in row])
    history = pd.DataFrame([row for path, _, _ in parts(run.folder / HISTORY_FOLDER) for row in read_part(path)])
    return RunData(run, steps, heldout, history, run.summary())


def sample_variance(history: pd.DataFrame) -> FloatArray:
    """Unbiased estimate of p(1-p) of each group, k(n-k)/(n(n-1)); NaN for groups of one."""
    k, n = history["successes"].to_numpy(float), history["n_rollouts"].to_numpy(float)
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(n > 1, k * (n - k) / (n * (n - 1)), np.nan)


def variance_ratios(history: pd.DataFrame, estimator: str) -> pd.DataFrame:
    """Gradient variance relative to equal groups, by step: columns predicted and realised.

    Both are ratios of sums over the prompts of a f(n_q) and a f(C/B), a predicted before the step or estimated from
    its rollouts. GRPO is allocated by RLOO's factor.
    """
    factor = _factor(estimator)
    table = pd.DataFrame(
        {
            "step": history["step"],
            "n": history["group_size"].astype(float),
            "predicted": history["predicted_bernoulli_variance"].astype(float),
            "realised": sample_variance(history),
        }
    )
    equal = table.groupby("step")["n"].transform("mean").to_numpy()
    sums = {"step": table["step"]}
    for name in ("predicted", "realised"):
        sums[name] = table[name] * factor(table["n"].to_numpy())
        sums[f"{name}_equal"] = table[name] * factor(equal)
    by_step = pd.DataFrame(sums).groupby("step").sum()
    return by_step.reset_index()


def overall_ratio(ratios: pd.DataFrame, name: str) -> float:
    """Ratio of sums over all steps; NaN where the denominator is zero."""
    equal = float(ratios[f"{name}_equal"].sum())
    return float(ratios[name].sum()) / equal if equal > 0 else float("nan")


def overhead_share(steps: pd.DataFrame) -> float:
    """Time for predicting, allocating and observing, as a share of all step time; the first step is left out."""
    later = steps.iloc[1:] if len(steps) > 1 else steps
    return float(later[OVERHEAD].sum() / later["step_seconds"].sum())


def summary_row(data: RunData, estimator: str) -> dict[str, Any]:
    """What the report's table says about one run."""
    ratios = variance_ratios(data.history, estimator)
    row: dict[str, Any] = {
        "policy": data.run.policy,
        "seed": data.run.seed,
        "steps": int(data.steps["step"].max()),
        "rollouts": int(data.steps["rollouts"].max()),
        "reward_last": float(data.steps["reward"].tail(10).mean()),
        "predicted_ratio": overall_ratio(ratios, "predicted"),
        "realised_ratio": overall_ratio(ratios, "realised"),
        "log_loss": float(data.steps["viprl/log_loss"].iloc[-1]),
        "log_loss_constant": float(data.steps["viprl/log_loss_constant"].iloc[-1]),
        "guard_share": float(data.steps["viprl/guard"].mean()),
        "step_seconds": float(data.steps["step_seconds"].median()),
        "overhead_share": overhead_share(data.steps),
        "finished": data.summary is not None,
    }
    if len(data.heldout):
        for name in ("sampled", "greedy"):
            row[f"{name}_start"] = float(data.heldout[f"heldout/{name}"].iloc[0])
            row[f"{name}_end"] = float(data.heldout[f"heldout/{name}"].iloc[-1])
    if data.summary is not None:
        rates = _rates(data)
        row["interval"] = _bounds(bootstrap_interval(rates[~np.isnan(rates)]))
    return row


def differences(runs: Sequence[RunData]) -> list[dict[str, Any]]:
    """Final held-out success, first policy minus each other one, for each seed that finished both.

    The interval is over held-out prompts (paired bootstrap): it holds what would change with other prompts, not what
    would change with another seed.
    """
    finished = {(d.run.policy, d.run.seed): d for d in runs if d.summary is not None}
    first = runs[0].run.policy
    rows = []
    for (policy, seed), other in finished.items():
        mine = finished.get((first, seed))
        if policy == first or mine is None or mine.summary is None or other.summary is None:
            continue
        theirs = dict(zip(other.summary["heldout_prompt_ids"], _rates(other), strict=True))
        rates, paired = _rates(mine), np.array([theirs[i] for i in mine.summary["heldout_prompt_ids"]])
        graded = ~np.isnan(rates) & ~np.isnan(paired)
        interval = paired_bootstrap_interval(rates[graded], paired[graded])
        rows.append(
            {
                "first": first,
                "other": policy,
                "seed": seed,
                "estimate": float(interval.estimate),
                "interval": _bounds(interval),
            }
        )
    return rows


def _rates(data: RunData) -> FloatArray:
    assert data.summary is not None
    return np.array([np.nan if x is None else x for x in data.summary["heldout_sampled"]], dtype=float)


def _bounds(interval: Interval) -> tuple[float, float]:
    return float(interval.low), float(interval.high)


def _factor(estimator: str) -> Callable[[FloatArray], FloatArray]:
    model = DrGRPO() if estimator == "dr_grpo" else RLOO()
    return lambda n: np.asarray(model.factor(n), dtype=float)
