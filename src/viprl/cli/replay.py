"""``viprl replay``: what every allocation rule would have done on a recorded run."""

from __future__ import annotations

import argparse
import sys

from viprl.errors import ConfigurationError
from viprl.registry import names
from viprl.replay.request import PROTOCOLS, ReplayRequest, run_request


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
    parser.add_argument("--protocol", choices=PROTOCOLS, default="log")
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
    data.add_argument("--rollouts", type=int, help="how many are behind each success_rate of a pool")
    data.add_argument("--prompts", help="prompts file: prompt_id, text, numeric columns")
    data.add_argument("--embeddings", help=".npy with a row for each prompt of --prompts, or .npz with prompt_ids")
    data.add_argument("--side-information", help="numeric columns of --prompts for the predictor, comma-separated")
    run = parser.add_argument_group("run")
    run.add_argument("--estimator", default="rloo", help=f"{', '.join(names('estimator'))} (default %(default)s)")
    run.add_argument("--group-size", type=float, help="mean rollouts a prompt; default: as recorded (pool, drift: 8)")
    run.add_argument("--min-group-size", type=int, help="L; default 3, or 2 where groups are smaller")
    run.add_argument("--max-group-size", type=int, help="U; default 4 x group size")
    run.add_argument("--seeds", help="comma-separated; default 0 (pool: 0,1,2)")
    run.add_argument("--jobs", type=int, help="processes; default: cores")
    run.add_argument("--outage", metavar="START:LENGTH", help="pretend that all rewards of these steps were zero (log)")
    run.add_argument("--batch", type=int, default=None, help="prompts a step (pool 512, drift 128)")
    run.add_argument("--epochs", type=int, default=2, help="passes over the pool")
    run.add_argument("--resamples", type=int, default=2000, help="of the bootstrap")
    run.add_argument(
        "--candidates",
        type=int,
        default=4,
        help="prompts offered for each of a step, for what selection saves; 1: none",
    )
    run.add_argument("--selection", default="learnability", choices=names("selection"))
    run.add_argument("--fresh", action="store_true", help="ignore results of an earlier call in --out")
    run.add_argument("--quiet", action="store_true", help="no progress bar")
    parser.set_defaults(run=run_replay)


def run_replay(args: argparse.Namespace) -> int:
    plain: tuple[str, ...] = ("log", "protocol", "out", "format", "on_error", "reward_column", "success_at")
    plain += ("rollouts", "prompts", "embeddings", "estimator", "group_size", "min_group_size")
    plain += ("max_group_size", "jobs", "batch", "epochs", "resamples", "fresh", "candidates", "selection")
    request = ReplayRequest(
        **{name: getattr(args, name) for name in plain},
        rules=_names(args.rules),
        columns=columns_argument(args.columns),
        side_information=_names(args.side_information),
        seeds=[_integer("--seeds", s) for s in _names(args.seeds)],
        outage=_outage(args.outage),
    )
    result = run_request(request, bar=not args.quiet and sys.stderr.isatty())
    return 130 if result.interrupted else 0


def _names(text: str | None) -> list[str]:
    parts = [part.strip() for part in (text or "").split(",")] if text is not None else []
    if not all(parts):
        raise ConfigurationError(f"a list must hold names between its commas, but got {text!r}")
    return parts


def columns_argument(text: str | None) -> dict[str, str]:
    """``name=COLUMN,...`` as a dict."""
    parts = [part.partition("=")[::2] for part in _names(text)]
    pairs = {name.strip(): column.strip() for name, column in parts}
    if not all(pairs.values()) or len(pairs) < len(parts):
        raise ConfigurationError(f"--columns must be name=COLUMN pairs, each name once, but got {text!r}")
    return pairs


def _outage(text: str | None) -> tuple[int, int] | None:
    if text is None:
        return None
    start, colon, length = text.partition(":")
    if not colon:
        raise ConfigurationError(f"--outage must be START:LENGTH, in steps, but got {text!r}")
    return _integer("--outage", start), _integer("--outage", length)


def _integer(option: str, text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise ConfigurationError(f"{option} must be whole numbers, but got {text!r}") from None
