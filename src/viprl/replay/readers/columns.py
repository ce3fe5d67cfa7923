"""Names of columns: what readers need, what a file has, and the line to type where the two differ."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path

from viprl.errors import ConfigurationError
from viprl.replay.readers.report import LogFormatError

# canonical name -> other names that tables of this kind use, for the advice in errors
COLUMNS: dict[str, tuple[str, ...]] = {
    "step": ("global_step", "iteration", "iter", "it", "training_step"),
    "prompt_id": ("uid", "id", "question_id", "problem_id", "qid", "index", "idx", "unique_id"),
    "prompt": ("question", "problem", "input", "query", "prompt_text"),
    "successes": ("correct", "num_correct", "n_correct", "k", "hits", "passes", "n_success"),
    "n_rollouts": ("n", "samples", "num_samples", "n_samples", "k_samples", "total", "count", "rollouts", "of"),
    "success_rate": ("pass_rate", "solve_rate", "accuracy", "acc", "rate", "avg_score", "mean_score", "pass@1"),
    "reward": ("score", "rewards", "is_correct", "label"),
    "reward_mean": (),
    "reward_var": ("reward_variance",),
}
PROMPT = ("prompt_id", "prompt")


def check_columns(columns: Mapping[str, str] | None) -> dict[str, str]:
    """A map canonical name -> column of the file, with nothing in it that no reader reads.

    Raises:
        ConfigurationError: an unknown name, or a map the wrong way round.
    """
    chosen = dict(columns or {})
    for name, column in chosen.items():
        if name not in COLUMNS:
            turned = f"; the other way round it is one: {column}={name}" if column in COLUMNS else ""
            raise ConfigurationError(
                f"--columns maps viprl's names to your file's, {', '.join(COLUMNS)}, but got {name}={column}{turned}"
            )
    return chosen


def resolve(
    path: Path, found: Collection[str], columns: Mapping[str, str] | None, layouts: Mapping[str, Collection[str]]
) -> tuple[str, dict[str, str]]:
    """The first layout that a file's columns allow, and canonical name -> column of all that is there.

    Args:
        layouts: name -> columns needed; "prompt_id" may be a "prompt" instead.

    Raises:
        LogFormatError: a mapped column is not in the file, or no layout fits; the message has the line to type.
    """
    chosen = check_columns(columns)
    for name, column in chosen.items():
        if column not in found:
            raise LogFormatError(f"{path.name} has no column {column!r} for {name}; it has {', '.join(sorted(found))}")
    names = {name: chosen.get(name, name) for name in COLUMNS}
    taken = set(chosen.values())
    there = {n: c for n, c in names.items() if c in found and (n in chosen or c not in taken)}
    for layout, needed in layouts.items():
        if all(name in there or (name == "prompt_id" and "prompt" in there) for name in needed):
            return layout, there
    raise LogFormatError(
        f"{path.name} must have {' or '.join(', '.join(needed) for needed in layouts.values())}, but it has "
        f"{', '.join(sorted(found))}; say which is which: {_line_to_type(found, there, chosen, layouts)}"
    )


def _line_to_type(
    found: Collection[str],
    there: Mapping[str, str],
    chosen: Mapping[str, str],
    layouts: Mapping[str, Collection[str]],
) -> str:
    """The --columns of the layout that most of the file's columns fit; NAME where nothing resembles it."""

    def guesses(needed: Collection[str]) -> dict[str, str]:
        free = {column.lower(): column for column in found if column not in there.values()}
        result: dict[str, str] = {}
        for name in needed:
            options = [*COLUMNS[name], *(COLUMNS["prompt"] if name == "prompt_id" else ())]
            known = next((free[o] for o in options if o in free), None)
            if known is None and name == "reward":
                known = next((column for low, column in free.items() if low.endswith("_reward")), None)
            if name in there or (name == "prompt_id" and "prompt" in there):
                continue
            result["prompt" if known and name == "prompt_id" and known.lower() in COLUMNS["prompt"] else name] = (
                known or "NAME"
            )
        return result

    def distance(needed: Collection[str]) -> tuple[int, int]:
        guessed = guesses(needed)
        return list(guessed.values()).count("NAME"), len(guessed) - len(needed)  # of equals, the one that has the most

    best = guesses(min(layouts.values(), key=distance))
    return "--columns " + ",".join(f"{name}={column}" for name, column in {**chosen, **best}.items())
