"""How wrong are predicted success rates over training? (The paper's Figure 3, at small scale.)

Replays the rollouts of finished uniform runs of ``experiments/learning`` to every predictor: each predicts a step's
prompts, then sees their rewards, so that all of them see the same rollouts of the same models.

    python experiments/learning/run.py --work runs/learning
    python experiments/prediction/errors.py --work runs/learning
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

import numpy as np
import pandas as pd

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "ablation"))
from predictors import PREDICTORS  # noqa: E402
from table import interval  # noqa: E402

LABELS = {
    "gp": "GP as printed",
    "ridge": "ridge, last 1,024",
    "moving": "moving average, last 1,024",
    "beta": "discounted Beta",
    "default": "default",
}
VISITS = ((0, 1), (1, 3), (3, None))


def replay(history: pd.DataFrame, name: str) -> pd.DataFrame:
    """One row per visit: step, visit, absolute error of the rate, nats per rollout, predicted and true variance."""
    prompts = list(dict.fromkeys(history["prompt_id"]))
    predictor = PREDICTORS[name](prompts)
    rows = []
    for step, batch in history.groupby("step", sort=True):
        ids = batch["prompt_id"].tolist()
        successes, rollouts = (batch[c].to_numpy(dtype=float) for c in ("successes", "n_rollouts"))
        prediction = predictor.predict(ids)
        mean = np.asarray(prediction.mean)
        p = np.clip(mean, 1e-3, 1 - 1e-3)  # the printed GP says 0 and 1, whose nats would be infinite
        rate = successes / rollouts
        nats = -(rate * np.log(p) + (1 - rate) * np.log1p(-p))
        rows.append(
            pd.DataFrame({"step": step, "visit": batch["visit"].to_numpy(), "error": np.abs(mean - rate), "nats": nats})
        )
        predictor.observe(ids, successes, rollouts)
    return pd.concat(rows, ignore_index=True)


def table(found: dict[str, list[pd.DataFrame]]) -> str:
    """Markdown: error and nats by number of earlier visits."""
    names = [
        f"visit {a + 1}" if b == a + 1 else f"visits {a + 1} to {b}" if b else f"visits {a + 1}-" for a, b in VISITS
    ]
    head = "| predictor | " + " | ".join(f"MAE, {n}" for n in names) + " | " + " | ".join(f"nats, {n}" for n in names)
    lines = [head + " |", "|---" * (1 + 2 * len(VISITS)) + "|"]
    for name, label in LABELS.items():
        cells = []
        for column in ("error", "nats"):
            for low, high in VISITS:
                chosen = [run[(run.visit >= low) & (run.visit < (high or 10**9))][column].mean() for run in found[name]]
                mean, half = interval(chosen)
                cells.append(f"{mean:.3f} ± {half:.3f}")
        lines.append(f"| {label} | " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def draw(found: dict[str, list[pd.DataFrame]], path: Path, window: int = 8) -> None:
    """Mean absolute error by step, a moving mean over ``window`` steps, averaged over runs."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7.2, 4.2), layout="constrained")
    FigureCanvasAgg(figure)
    axis = figure.subplots()
    styles = {
        "gp": ("#8a5a00", ":"),
        "ridge": ("#c2570c", "--"),
        "moving": ("#5b6675", "-."),
        "beta": ("#2f7d4f", (0, (5, 1))),
        "default": ("#1f63c4", "-"),
    }
    for name, runs in found.items():
        curves = np.array([run.groupby("step")["error"].mean().rolling(window, min_periods=1).mean() for run in runs])
        colour, dash = styles[name]
        axis.plot(curves.mean(axis=0), color=colour, linestyle=dash, linewidth=2, label=LABELS[name])
    axis.set(xlabel="step", ylabel="mean |predicted - observed rate| (8 rollouts)", ylim=(0, None))
    axis.set_title(f"{len(next(iter(found.values())))} runs, uniform groups, mean of {window} steps")
    axis.grid(color="#dfe4ea")
    axis.spines[["top", "right"]].set_visible(False)
    axis.legend(frameon=False)
    figure.savefig(path, dpi=150)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--work", type=Path, default=Path("runs/learning"), help="the runs of experiments/learning")
    parser.add_argument("--out", type=Path, default=HERE)
    args = parser.parse_args()
    paths = sorted(args.work.glob("*-uniform-*/report/history.parquet"))
    if not paths:
        raise SystemExit(f"no finished uniform run in {args.work}")
    found: dict[str, list[pd.DataFrame]] = {name: [] for name in LABELS}
    for path in paths:
        history = pd.read_parquet(path)
        for name in LABELS:
            found[name].append(replay(history, name))
    text = table(found)
    (args.out / "table.md").write_text(text, encoding="utf-8")
    (args.out / "errors.json").write_text(
        json.dumps(
            {
                name: [run.groupby("step")["error"].mean().round(4).tolist() for run in runs]
                for name, runs in found.items()
            }
        )
        + "\n",
        encoding="utf-8",
    )
    draw(found, args.out / "errors.png")
    print(f"{len(paths)} runs\n{text}")


if __name__ == "__main__":
    main()
