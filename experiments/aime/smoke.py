"""The recipe on two CPU cores: preparation, two steps, validation, results table. Tiny random model, 16 problems.

Everything is the recipe's, except what a CPU and a model of 100,000 parameters need: sizes, backend and platform from
tests/verl_cpu. Answers are random characters, so most rewards are -1 and the table shows (near) zeros.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import types
from pathlib import Path

HERE = Path(__file__).resolve().parent
BACKEND = HERE.parents[1] / "tests" / "verl_cpu"

# the backend's own __init__ registers with verl; here only its plain modules are wanted
_package = types.ModuleType("verl_cpu")
_package.__path__ = [str(BACKEND / "verl_cpu")]
sys.modules["verl_cpu"] = _package

from verl_cpu.launch import Run, overrides  # noqa: E402
from verl_cpu.world import make_model, read_lines  # noqa: E402

ANSWERS = 4


def prepare(folder: Path) -> None:
    smoke = HERE / "smoke"
    tests = [f"--test={name}={smoke / name}.jsonl" for name in ("aime2024", "aime2025")]
    subprocess.run(
        [sys.executable, HERE / "prepare.py", "--out", folder, "--train", smoke / "train.jsonl", *tests], check=True
    )


def arguments(folder: Path) -> list[str]:
    """The recipe's overrides, then those of a CPU run; where both set a key, the last one counts."""
    environment = {**os.environ, "DATA": str(folder), "RUNS": str(folder)}
    printed = subprocess.run(
        ["bash", HERE / "run.sh", "--print", "qwen2.5-math-1.5b", "rloo", "vip", "8q", "1"],
        check=True,
        capture_output=True,
        text=True,
        env=environment,
    )
    dropped = ("reward.custom_reward_function", "data.train_files", "data.val_files", "trainer.default_local_dir")
    cpu = overrides(folder, folder / "tiny", folder / "train.parquet", folder / "test.parquet", steps=2)
    cpu = [argument for argument in cpu if not argument.startswith(dropped)]
    return [
        *printed.stdout.splitlines(),
        *cpu,
        "data.max_prompt_length=512",
        "actor_rollout_ref.actor.use_dynamic_bsz=False",
        "actor_rollout_ref.rollout.log_prob_use_dynamic_bsz=False",
        f"actor_rollout_ref.rollout.val_kwargs.n={ANSWERS}",
        "actor_rollout_ref.rollout.n=8",
        "trainer.test_freq=2",
        "trainer.save_freq=2",
        f"trainer.validation_data_dir={folder}/validation",
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, help="kept; a temporary folder otherwise")
    parser.add_argument("--seconds", type=float, default=900.0, help="give up after this time")
    args = parser.parse_args()
    folder = (args.out or Path(tempfile.mkdtemp(prefix="aime_smoke_"))).resolve()
    folder.mkdir(parents=True, exist_ok=True)
    prepare(folder)
    make_model(folder / "tiny", positions=1024)
    run = Run(folder, arguments(folder)).start()
    status = run.wait(args.seconds)
    if status:
        raise SystemExit(f"the run ended with status {status}:\n{run.tail()}")
    steps = read_lines(run.metrics)
    print(
        f"{len(steps)} steps; n_q between {steps[-1]['data']['viprl/group_size_min']:.0f} and "
        f"{steps[-1]['data']['viprl/group_size_max']:.0f}; missing {steps[-1]['data']['viprl/missing_rewards']:.0f}"
    )
    subprocess.run([sys.executable, HERE / "results.py", folder, "--k", str(ANSWERS)], check=True)


if __name__ == "__main__":
    main()
