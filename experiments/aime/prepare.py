r"""Training and test problems in verl's row format.

    python prepare.py --out data --train dapo_math_17k.parquet --test aime2024=aime2024.jsonl \
        --test aime2025=aime2025.jsonl
    python prepare.py --out data                       # from the hub

A local file (.parquet, .jsonl, .json) needs the columns ``problem`` and ``answer``; ``id`` is used where it is there.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import pandas as pd

from viprl.errors import ConfigurationError
from viprl.prompts.ids import content_hash

INSTRUCTION = 'Solve the following problem step by step. The last line of your answer must be "Answer: <answer>".'
HUB_TRAIN = "BytedTsinghua-SIA/DAPO-Math-17k"
HUB_TEST = {"aime2024": "HuggingFaceH4/aime_2024", "aime2025": "math-ai/aime25"}
# DAPO's own wrapper around a problem, taken off so that every problem gets the instruction above
DAPO_HEAD = "Solve the following math problem step by step."
DAPO_TAIL = 'Remember to put your answer on its own line after "Answer:".'


def prompt_of(problem: str) -> list[dict[str, str]]:
    """The conversation that a model is given."""
    return [{"role": "user", "content": f"{INSTRUCTION}\n\n{problem}"}]


def unwrap(problem: str) -> str:
    """The bare problem of a row of DAPO-Math-17k."""
    text = problem.strip()
    if text.startswith(DAPO_HEAD):
        text = text.split("\n\n", 1)[-1]
    return text.removesuffix(DAPO_TAIL).strip()


def to_rows(problems: Iterable[Mapping[str, Any]], source: str, split: str) -> list[dict[str, Any]]:
    """verl rows; a problem that occurs again is left out, and every row carries its stable id.

    Raises:
        ConfigurationError: a problem without text or answer.
    """
    rows: dict[str, dict[str, Any]] = {}
    for problem in problems:
        text, answer = str(problem["problem"]).strip(), str(problem["answer"]).strip()
        if not text or not answer:
            raise ConfigurationError(f"every problem needs a text and an answer, but {source} has {dict(problem)}")
        key = content_hash(text)
        if key in rows:
            continue
        rows[key] = {
            "data_source": source,
            "prompt": prompt_of(text),
            "ability": "math",
            "reward_model": {"style": "rule", "ground_truth": answer},
            "extra_info": {"split": split, "index": len(rows), "prompt_id": str(problem.get("id") or key)},
        }
    return list(rows.values())


def read_file(path: Path) -> list[dict[str, Any]]:
    """Rows of a local file."""
    frame = pd.read_parquet(path) if path.suffix == ".parquet" else pd.read_json(path, lines=path.suffix == ".jsonl")
    missing = {"problem", "answer"} - set(frame.columns)
    if missing:
        raise ConfigurationError(f"{path} must have the columns problem and answer, but lacks {sorted(missing)}")
    return frame.to_dict("records")


def read_hub(name: str) -> list[dict[str, Any]]:
    """Rows of a data set of the hub, with DAPO's prompt wrapper taken off."""
    from datasets import load_dataset

    data = load_dataset(name)
    split = data["train"] if "train" in data else data["test"]
    if "problem" in split.column_names:
        return [{"problem": row["problem"], "answer": row["answer"], "id": row.get("id")} for row in split]
    return [
        {"problem": unwrap(row["prompt"][0]["content"]), "answer": row["reward_model"]["ground_truth"]} for row in split
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("data"))
    parser.add_argument("--train", type=Path, help=f"local file; {HUB_TRAIN} of the hub where absent")
    parser.add_argument("--test", action="append", default=[], metavar="NAME=FILE", help="local test files")
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)

    train = to_rows(read_file(args.train) if args.train else read_hub(HUB_TRAIN), "dapo_math_17k", "train")
    named = [entry.split("=", 1) for entry in args.test]
    tests = [(name, read_file(Path(file))) for name, file in named] or [
        (n, read_hub(hub)) for n, hub in HUB_TEST.items()
    ]
    test = [row for name, problems in tests for row in to_rows(problems, name, "test")]
    for split, rows in (("train", train), ("test", test)):
        pd.DataFrame(rows).to_parquet(args.out / f"{split}.parquet")
        print(f"{args.out / split}.parquet: {len(rows)} problems")


if __name__ == "__main__":
    main()
