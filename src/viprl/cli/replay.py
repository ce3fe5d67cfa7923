"""``viprl replay``: what every allocation rule would have done on a recorded run."""

from __future__ import annotations

import argparse
import sys

from viprl.errors import ConfigurationError
from viprl.replay import job


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = subparsers.add_parser(
        "replay",
        help="compare allocation rules on a recorded run, without a model",
        description="Replay a recorded run (or a pool, or simulated drift) under every allocation rule. "
        "docs/replay.md explains each figure.",
    )
    parser.add_argument(
        "log",
        nargs="?",
        help="log file or folder (history, verl dumps, TRL completions, CSV); or rates for --protocol pool",
    )
    parser.add_argument("--protocol", choices=job.PROTOCOLS, default="log")
    parser.add_argument(
        "--rules", help="comma-separated, e.g. uniform,vip:calibrated,vip:beta+guard,dapo; default: all"
    )
    parser.add_argument(
        "--out", default="viprl-replay", help="folder for report.html, report.json, report.png (default %(default)s)"
    )
    data = parser.add_argument_group("reading")
    data.add_argument("--format", default="auto", choices=["auto", "history", "csv", "verl", "trl"])
    data.add_argument("--on-error", default="stop", choices=["stop", "skip"], help="what a malformed row does")
    data.add_argument("--columns", help="names in your file: step=STEP,prompt_id=ID,successes=K,n_rollouts=N")
    data.add_argument("--reward-column", help="of rollout dumps")
    data.add_argument("--success-at", type=float, help="rewards from this value on are successes")
    data.add_argument("--prompts", help="prompts file: prompt_id, text, numeric columns")
    data.add_argument("--embeddings", help=".npy with a row for each prompt of --prompts, or .npz with prompt_ids")
    data.add_argument("--side-information", help="numeric columns of --prompts for the predictor, comma-separated")
    run = parser.add_argument_group("run")
    run.add_argument("--estimator", default="rloo", choices=["rloo", "dr_grpo"])
    run.add_argument("--group-size", type=float, help="mean rollouts a prompt; default: as recorded (pool, drift: 8)")
    run.add_argument("--min-group-size", type=int, help="L; default min(3, group size)")
    run.add_argument("--max-group-size", type=int, help="U; default 4 x group size")
    run.add_argument("--seeds", help="comma-separated; default 0 (pool: 3,4,5)")
    run.add_argument("--jobs", type=int, help="processes; default: cores")
    run.add_argument("--outage", metavar="START:LENGTH", help="pretend that all rewards of these steps were zero (log)")
    run.add_argument("--batch", type=int, default=None, help="prompts a step (pool 512, drift 128)")
    run.add_argument("--epochs", type=int, default=2, help="passes over the pool")
    run.add_argument(
        "--draws",
        choices=["reference", "common"],
        default="reference",
        help="pool: random numbers; common gives tighter comparisons",
    )
    run.add_argument("--resamples", type=int, default=2000, help="of the bootstrap")
    run.add_argument("--fresh", action="store_true", help="ignore results of an earlier call in --out")
    run.add_argument("--quiet", action="store_true", help="no progress bar")
    parser.set_defaults(run=run_replay)


def run_replay(args: argparse.Namespace) -> int:
    request = job.ReplayRequest(
        log=args.log,
        protocol=args.protocol,
        rules=_names(args.rules),
        out=args.out,
        format=args.format,
        on_error=args.on_error,
        columns=columns_argument(args.columns),
        reward_column=args.reward_column,
        success_at=args.success_at,
        prompts=args.prompts,
        embeddings=args.embeddings,
        side_information=_names(args.side_information) or [],
        estimator=args.estimator,
        group_size=args.group_size,
        min_group_size=args.min_group_size,
        max_group_size=args.max_group_size,
        seeds=[_integer("--seeds", s) for s in _names(args.seeds)] if args.seeds else None,
        jobs=args.jobs,
        outage=_outage(args.outage),
        batch=args.batch,
        epochs=args.epochs,
        draws=args.draws,
        resamples=args.resamples,
        fresh=args.fresh,
    )
    result = job.run(request, say=print, bar=not args.quiet and sys.stderr.isatty())
    return 130 if result.interrupted else 0


def _names(text: str | None) -> list[str]:
    return [part.strip() for part in (text or "").split(",") if part.strip()]


def columns_argument(text: str | None) -> dict[str, str]:
    """``name=COLUMN,...`` as a dict."""
    pairs = dict(part.partition("=")[::2] for part in _names(text))
    if any(not value for value in pairs.values()):
        raise ConfigurationError(f"--columns must be name=COLUMN pairs, but got {text!r}")
    return pairs


def _outage(text: str | None) -> tuple[int, int] | None:
    if text is None:
        return None
    start, _, length = text.partition(":")
    return _integer("--outage", start), _integer("--outage", length)


def _integer(option: str, text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise ConfigurationError(f"{option} must be whole numbers, but got {text!r}") from None
