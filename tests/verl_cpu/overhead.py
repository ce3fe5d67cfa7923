"""What the allocator costs the TaskRunner: predict, allocate (or select), observe and save, beside a real run's steps.

    python overhead.py --prompts 17255                    in this process, no cluster
    python overhead.py --prompts 17255 --run FOLDER       in the TaskRunner of a CPU run (two rollouts a prompt)

Prints medians in milliseconds. The run's figures come from verl's own log (timing_s/viprl_*).
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

HERE = Path(__file__).resolve().parent
NAMES = ("viprl_allocate", "viprl_observe", "viprl_save")


def in_process(count: int, batch: int, steps: int, predictor: str, candidates: int) -> dict[str, float]:
    """Medians (ms) over the steps, and seconds for the set-up, on verl-like rows of one distinct prompt each."""
    from datasets import Dataset

    from viprl.integrations.verl.budget import StepBudget
    from viprl.integrations.verl.checks import RunSettings
    from viprl.integrations.verl.ledger import PlanLedger
    from viprl.integrations.verl.options import AdaptiveOptions
    from viprl.integrations.verl.setup import allocator_of_run, prompts_of_dataset
    from viprl.settings import AllocationSettings

    rows = {
        "data_source": ["d"] * count,
        "prompt": [[{"role": "user", "content": f"How much is {i} times {i % 97}?"}] for i in range(count)],
        "extra_info": [{"index": i} for i in range(count)],
    }
    holder = types.SimpleNamespace(dataframe=Dataset.from_dict(rows))
    budget = StepBudget(batch, 8 * batch, 3, 32, 8 * batch)
    settings = AllocationSettings(
        estimator="rloo", predictor=predictor, variance="formula", candidates=candidates
    ).for_step(batch, 8 * batch)
    run = RunSettings(AdaptiveOptions(settings), settings, budget, True)
    measured: dict[str, list[float]] = {name: [] for name in (*NAMES, "set-up")}
    processor: dict[str, list[float]] = {}

    def timed(name: str, call: Callable[[], Any]) -> Any:
        start, used = time.perf_counter(), time.process_time()
        result = call()
        measured[name].append(1000 * (time.perf_counter() - start))
        processor.setdefault(name, []).append(1000 * (time.process_time() - used))
        return result

    prompts = timed("set-up", lambda: prompts_of_dataset(holder, prompt_column="prompt", settings=settings))
    allocator = timed("set-up", lambda: allocator_of_run(prompts, run))
    rng = np.random.default_rng(0)
    chance = rng.beta(0.4, 0.5, count)
    order = rng.permutation(count)
    with tempfile.TemporaryDirectory() as folder:
        for step in range(steps):
            # two visits to the same prompts: the second meets a warm predictor
            offered = candidates * batch
            chosen = order[(step // 2 * offered) % (count - offered) :][:offered]
            ids = [prompts.ids[i] for i in chosen]
            ledger = PlanLedger()
            decide = allocator.allocate if candidates == 1 else allocator.select
            plan = timed("viprl_allocate", lambda ids=ids, decide=decide: decide(ids, budget.rollouts))
            chosen = chosen[plan.kept]
            uids = [f"{step}u{i}" for i in range(len(plan))]
            ledger.open(plan, uids)
            rewards = (rng.random(budget.rollouts) < np.repeat(chance[chosen], plan.group_sizes)).astype(float)
            names = [uid for uid, size in zip(uids, plan.group_sizes, strict=True) for _ in range(size)]

            def observe(
                names: list[str] = names, rewards: Any = rewards, ledger: Any = ledger, step: int = step
            ) -> None:
                tokens = np.ones(len(names), int)
                for answer in ledger.settle(names, rewards, tokens, max_missing=0.5, step=step):
                    allocator.observe(answer.plan, answer.rewards, tokens=answer.tokens)
                    allocator.history_rows()

            timed("viprl_observe", observe)
            timed("viprl_save", lambda: allocator.save(Path(folder) / "viprl.npz"))
        size = (Path(folder) / "viprl.npz").stat().st_size
    medians = {name: statistics.median(measured[name]) for name in NAMES}
    return {
        **medians,
        "all three, processor time": sum(statistics.median(processor[name]) for name in NAMES),
        "set-up seconds": sum(measured["set-up"]) / 1000,
        "checkpoint MB": size / 1e6,
    }


def in_a_run(folder: Path, count: int, batch: int, steps: int, predictor: str, seconds: float) -> dict[str, float]:
    """Medians (ms) over the steps after the first, from the log of a real CPU run."""
    package = types.ModuleType("verl_cpu")
    package.__path__ = [str(HERE / "verl_cpu")]
    sys.modules["verl_cpu"] = package
    sys.path.insert(0, str(HERE))
    from verl_cpu.launch import Run, overrides
    from verl_cpu.world import make_model, make_rows, read_lines, write_rows

    folder.mkdir(parents=True, exist_ok=True)
    make_model(folder / "tiny")
    train = write_rows(make_rows(count), folder / "train.parquet")
    val = write_rows(make_rows(2, split="test"), folder / "val.parquet")
    given = [
        *overrides(folder, folder / "tiny", train, val, steps=steps),
        "trainer.v1.trainer_mode=viprl_sync",
        "algorithm.adv_estimator=viprl_rloo",
        f"+viprl.predictor={predictor}",
        "+viprl.min_group_size=1",
        "+viprl.max_group_size=8",
        f"data.train_batch_size={batch}",
        "actor_rollout_ref.rollout.n=2",
        f"actor_rollout_ref.actor.ppo_mini_batch_size={batch}",
        "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=128",
        "actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu=128",
        "data.max_response_length=8",
        "trainer.save_freq=1",
    ]
    run = Run(folder, given).start()
    status = run.wait(seconds)
    if status:
        raise SystemExit(f"the run ended with status {status}:\n{run.tail()}")
    logged = [line["data"] for line in read_lines(run.metrics)][1:]
    medians = {name: 1000 * statistics.median(step[f"timing_s/{name}"] for step in logged) for name in NAMES}
    fetch = 1000 * statistics.median(step["timing_s/viprl_fetch"] for step in logged)
    return {
        **medians,
        "fetch (TransferQueue)": fetch,
        "step": 1000 * statistics.median(step["timing_s/step"] for step in logged),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--prompts", type=int, default=17_255)
    parser.add_argument("--batch", type=int, default=512)
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--predictor", default="calibrated")
    parser.add_argument("--candidates", type=int, default=1, help="offered for each prompt of the batch; not in a run")
    parser.add_argument("--run", type=Path, metavar="FOLDER")
    parser.add_argument("--seconds", type=float, default=1800.0)
    args = parser.parse_args()
    common = (args.prompts, args.batch, args.steps, args.predictor)
    found = in_a_run(args.run, *common, args.seconds) if args.run else in_process(*common, args.candidates)
    total = sum(found[name] for name in NAMES)
    print(f"{args.prompts} prompts, batches of {args.batch}, candidates x{args.candidates}, predictor {args.predictor}")
    for name, value in {**found, "allocate + observe + save": total}.items():
        print(f"{name:28s} {value:10.2f}")


if __name__ == "__main__":
    main()
