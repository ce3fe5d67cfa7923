"""Numbers of a job's runs, read back from their folders.

Notation: k successes of n rollouts in a group; f the variance model's factor, v = p(1-p) f(n).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from viprl._arrays import FloatArray
from viprl.evaluation import Interval, bootstrap_interval, paired_bootstrap_interval
from viprl.history import HISTORY_COLUMNS, parts, read_part
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
        history: one row a prompt and step, the history schema; its steps count from 0, the log's from 1.
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

    @property
    def predicts_success(self) -> bool:
        """False where the predictor knows reward variances only: there are no probabilities to judge."""
        return bool(np.isfinite(_last(self.steps, "viprl/log_loss")))


def read_run(run: Run) -> RunData:
    """All tables of one run; only steps that were logged count."""
    rows = run.metrics.read()
    steps = pd.DataFrame([row for row in rows if "reward" in row])
    heldout = pd.DataFrame([row for row in rows if "heldout/sampled" in row])
    read = [row for path, _, _ in parts(run.folder / HISTORY_FOLDER) for row in read_part(path)]
    return RunData(run, steps, heldout, pd.DataFrame(read, columns=list(HISTORY_COLUMNS)), run.summary())


def policies_of(runs: Sequence[RunData]) -> list[str]:
    """Policies in order of appearance; the first is the job's main one."""
    return list(dict.fromkeys(data.run.policy for data in runs))


def histories_of(runs: Sequence[RunData]) -> dict[str, pd.DataFrame]:
    """Policy -> the history of all its runs."""
    return {p: pd.concat([data.history for data in runs if data.run.policy == p]) for p in policies_of(runs)}


def sample_variance(history: pd.DataFrame) -> FloatArray:
    """Unbiased estimate of p(1-p) of each group, k(n-k)/(n(n-1)); NaN for groups of one."""
    k, n = history["successes"].to_numpy(float), history["n_rollouts"].to_numpy(float)
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(n > 1, k * (n - k) / (n * (n - 1)), np.nan)


def variance_ratios(history: pd.DataFrame, estimator: str) -> pd.DataFrame:
    """Gradient variance relative to equal groups, by step: columns predicted and realised.

    Both are ratios of sums over the prompts of a f(n_q) and a f(C/B), a predicted before the step or the sample
    variance of its rewards. GRPO is allocated by RLOO's factor.
    """
    factor = _factor(estimator)
    table = pd.DataFrame(
        {
            "step": history["step"],
            "n": history["group_size"].astype(float),
            "predicted": history["predicted_bernoulli_variance"].astype(float),
            "realised": history["reward_var"].astype(float),
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
    if OVERHEAD not in steps:
        return float("nan")
    later = steps.iloc[1:] if len(steps) > 1 else steps
    return float(later[OVERHEAD].sum() / later["step_seconds"].sum())


def used_steps(data: RunData) -> int | None:
    """Steps whose groups were the policy's and not the guard's equal ones; None for equal groups by choice."""
    if data.run.policy == "uniform":
        return None
    if "viprl/policy_used" in data.steps:
        return round(float(data.steps["viprl/policy_used"].sum()))
    return round(float((1 - data.steps["viprl/guard"]).sum())) if "viprl/guard" in data.steps else 0


def choice(history: pd.DataFrame) -> dict[str, float]:
    """Share of groups with a gradient and, where prompts were selected, how many a step of how many candidates."""
    groups = history[history["n_rollouts"] > 1]
    found = {"live_share": float((groups["reward_var"].astype(float) > 0).mean()) if len(groups) else math.nan}
    if history["candidates"].notna().any():
        found["kept"] = float(history.groupby("step").size().mean())
        found["candidates"] = float(history["candidates"].astype(float).mean())
    return found


def summary_row(data: RunData, estimator: str) -> dict[str, Any]:
    """What the report's table says about one run; NaN where a number does not exist."""
    ratios = variance_ratios(data.history, estimator)
    row: dict[str, Any] = {
        "policy": data.run.policy,
        "seed": data.run.seed,
        "steps": int(data.steps["step"].max()),
        "rollouts": int(data.steps["rollouts"].max()),
        "reward_last": float(data.steps["reward"].astype(float).tail(10).mean()),
        "predicted_ratio": overall_ratio(ratios, "predicted"),
        "realised_ratio": overall_ratio(ratios, "realised"),
        "log_loss": _last(data.steps, "viprl/log_loss"),
        "log_loss_constant": _last(data.steps, "viprl/log_loss_constant"),
        "policy_steps": used_steps(data),
        **choice(data.history),
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
    """Final held-out success, first policy minus each other one: the mean over the seeds that finished both.

    The interval is over held-out prompts (paired bootstrap): it holds what would change with other prompts, not what
    would change with another seed.
    """
    finished = {(d.run.policy, d.run.seed): d for d in runs if d.summary is not None}
    first, *others = policies_of(runs)
    rows = []
    for other in others:
        seeds = [seed for policy, seed in finished if policy == other and (first, seed) in finished]
        if not seeds:
            continue
        pairs = [(_by_prompt(finished[first, seed]), _by_prompt(finished[other, seed])) for seed in seeds]
        ids = sorted(pairs[0][0])
        means = [np.mean([[pair[side][i] for i in ids] for pair in pairs], axis=0) for side in (0, 1)]
        graded = ~np.isnan(means[0]) & ~np.isnan(means[1])
        interval = paired_bootstrap_interval(means[0][graded], means[1][graded])
        rows.append(
            {
                "first": first,
                "other": other,
                "seeds": seeds,
                "first_rate": float(means[0][graded].mean()),
                "other_rate": float(means[1][graded].mean()),
                "estimate": float(interval.estimate),
                "interval": _bounds(interval),
            }
        )
    return rows


def _by_prompt(data: RunData) -> dict[str, float]:
    assert data.summary is not None
    return dict(zip(data.summary["heldout_prompt_ids"], _rates(data).tolist(), strict=True))


def _rates(data: RunData) -> FloatArray:
    assert data.summary is not None
    return np.array([np.nan if x is None else x for x in data.summary["heldout_sampled"]], dtype=float)


def _last(steps: pd.DataFrame, name: str) -> float:
    known = steps[name].dropna().to_list() if name in steps else []
    return float(known[-1]) if known else float("nan")


def _bounds(interval: Interval) -> tuple[float, float]:
    return float(interval.low), float(interval.high)


def _factor(estimator: str) -> Callable[[FloatArray], FloatArray]:
    model = DrGRPO() if estimator == "dr_grpo" else RLOO()
    return lambda n: np.asarray(model.factor(n), dtype=float)
