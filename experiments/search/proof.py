"""Search learnt on two CPU cores: a synthetic world, a tiny model, uniform against VIP at the same budget.

    python experiments/search/proof.py --output runs/search-proof

Writes results.json, curves.png and report.md. The warm start is trained once and kept in the output folder. Facts of
the world are never seen in the warm start, and test questions are never trained on, so success needs searching.
"""

from __future__ import annotations

import argparse
import copy
import json
import os
import time
from collections import Counter
from pathlib import Path
from typing import Any

os.environ.setdefault("TRL_EXPERIMENTAL_SILENCE", "1")

import numpy as np
import torch
from datasets import Dataset
from transformers import TrainerCallback
from transformers.trainer_callback import PrinterCallback

from viprl.evaluation.intervals import paired_bootstrap_interval
from viprl.integrations.trl import AdaptiveGRPOConfig, AdaptiveGRPOTrainer
from viprl.tasks.search.agent import LoopLimits, ModelGenerate, question_messages, run_rollouts
from viprl.tasks.search.bm25 import BM25Retriever
from viprl.tasks.search.environment import SearchEnvironmentFactory, prepare_tokenizer
from viprl.tasks.search.questions import Question
from viprl.tasks.search.rewards import SearchReward
from viprl.tasks.search.scores import score_rollout
from viprl.tasks.search.session import SearchLimits, SearchSession
from viprl.tasks.search.tiny import WarmStart, build_model, build_tokenizer, warm_start
from viprl.tasks.search.world import FactWorld

LOOP = LoopLimits(max_turns=5, max_turn_tokens=48, max_tokens=190)
LIMITS = SearchLimits(top_k=2, max_calls=4)


class Nothing:
    """A retriever that never finds anything: the control that shows that searching is needed."""

    def retrieve(self, queries: Any, top_k: int) -> Any:
        return [[] for _ in queries]


def evaluate(model: Any, tokenizer: Any, questions: list[Question], retriever: Any, samples: int) -> dict[str, Any]:
    """Sampled success by question and hops, and what the rollouts did. Leaves the random state as it was."""
    state = torch.random.get_rng_state()
    model.eval()
    generate = ModelGenerate(model, tokenizer, temperature=1.0, batch_size=256, seed=123)
    repeated = [question for question in questions for _ in range(samples)]
    rollouts = run_rollouts(
        generate,
        tokenizer,
        repeated,
        lambda: SearchSession(retriever, limits=LIMITS, escaper=None),
        limits=LOOP,
        system_prompt=None,
    )
    model.train()
    torch.random.set_rng_state(state)
    success = np.array([score_rollout(r, k=LIMITS.top_k)["em"] for r in rollouts]).reshape(-1, samples).mean(axis=1)
    two = np.array([len(question.hops) == 2 for question in questions])
    events: Counter[str] = Counter()
    for rollout in rollouts:
        events.update(rollout.session.events)
    hop_searches = np.array([r.session.events["searches"] for r in rollouts]).reshape(-1, samples).mean(axis=1)
    return {
        "two_hop": float(success[two].mean()),
        "one_hop": float(success[~two].mean()),
        "searches_two_hop": float(hop_searches[two].mean()),
        "searches_one_hop": float(hop_searches[~two].mean()),
        "malformed": events["malformed_calls"] / len(rollouts),
        "stops": dict(Counter(r.stop for r in rollouts)),
        "by_question": success.tolist(),
        "two": two.tolist(),
    }


class Evaluation(TrainerCallback):
    """Evaluates every `every` steps and at the end."""

    def __init__(self, tokenizer: Any, questions: list[Question], retriever: Any, samples: int, every: int) -> None:
        self.arguments = (tokenizer, questions, retriever, samples)
        self.every, self.rows, self.begun, self.spent = every, [], time.time(), 0.0

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **kwargs: Any) -> None:
        if logs and "reward" in logs:
            print(f"  step {state.global_step}: reward {logs['reward']:.3f}, {logs['step_time']:.1f} s", flush=True)

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if state.global_step % self.every and state.global_step != state.max_steps:
            return
        before = time.time()
        row = evaluate(kwargs["model"], *self.arguments)
        self.spent += time.time() - before
        row |= {"step": state.global_step, "training_seconds": time.time() - self.begun - self.spent}
        self.rows.append(row)
        print(f"step {state.global_step}: two-hop {row['two_hop']:.3f}, one-hop {row['one_hop']:.3f}", flush=True)


def train(policy: str, model: Any, tokenizer: Any, world: FactWorld, args: argparse.Namespace) -> dict[str, Any]:
    retriever = BM25Retriever(world.passages)
    train_questions, test_questions = world.split(args.train_size, args.test_size)
    dataset = Dataset.from_list(
        [
            {"prompt": question_messages(q.question, None), "prompt_id": q.id, "answers": list(q.answers)}
            for q in train_questions
        ]
    )
    settings = AdaptiveGRPOConfig(
        output_dir=str(args.output / policy),
        per_device_train_batch_size=args.budget,
        num_generations=args.group_size,
        max_group_size=3 * args.group_size,
        max_completion_length=LOOP.max_tokens,
        max_tool_calling_iterations=LOOP.max_turns - 1,
        max_steps=args.steps,
        learning_rate=args.learning_rate,
        lr_scheduler_type="constant_with_warmup",
        warmup_steps=5,
        adam_beta2=0.99,
        max_grad_norm=1.0,
        temperature=1.0,
        top_k=0,
        beta=0.0,
        scale_rewards="none",
        loss_type="dr_grpo",
        estimator=args.estimator,
        policy=policy,
        predictor=args.predictor,
        prompt_id_column="prompt_id",
        seed=args.seed,
        use_cpu=True,
        bf16=False,
        gradient_checkpointing=False,
        report_to=[],
        logging_steps=1,
        save_strategy="no",
        disable_tqdm=True,
    )
    samples = args.samples
    start = evaluate(model, tokenizer, test_questions, retriever, samples) | {"step": 0, "training_seconds": 0.0}
    print(f"{policy}, step 0: two-hop {start['two_hop']:.3f}, one-hop {start['one_hop']:.3f}", flush=True)
    evaluation = Evaluation(tokenizer, test_questions, retriever, samples, args.eval_every)
    trainer = AdaptiveGRPOTrainer(
        model,
        SearchReward("em"),
        settings,
        dataset,
        processing_class=tokenizer,
        callbacks=[evaluation],
        environment_factory=SearchEnvironmentFactory(retriever, tokenizer, limits=LIMITS),
    )
    trainer.remove_callback(PrinterCallback)
    trainer.train()
    keep = ("reward", "viprl/variance_ratio", "viprl/group_size_max", "search/searches", "search/malformed_calls")
    log = [
        {"step": row["step"], **{k: row.get(k) for k in keep}} for row in trainer.state.log_history if "reward" in row
    ]
    control = evaluate(model, tokenizer, test_questions, Nothing(), 1)
    return {"curve": [start, *evaluation.rows], "log": log, "without_passages": control["two_hop"]}


def report(results: dict[str, Any], folder: Path) -> None:
    """results.json, report.md and curves.png."""
    (folder / "results.json").write_text(json.dumps(results, indent=1) + "\n")
    lines = [
        "| policy | step | two-hop | one-hop | searches (two-hop) | seconds of training |",
        "|---|---|---|---|---|---|",
    ]
    for policy, run in results["runs"].items():
        for row in run["curve"]:
            lines.append(
                f"| {policy} | {row['step']} | {row['two_hop']:.3f} | {row['one_hop']:.3f} | "
                f"{row['searches_two_hop']:.2f} | {row['training_seconds']:.0f} |"
            )
    lines.append("")
    for policy, run in results["runs"].items():
        first, last = run["curve"][0], run["curve"][-1]
        two = np.array(last["two"])
        gain = paired_bootstrap_interval(np.array(last["by_question"])[two], np.array(first["by_question"])[two])
        lines.append(
            f"{policy}: two-hop success {first['two_hop']:.3f} -> {last['two_hop']:.3f}, gain {gain.estimate:.3f} "
            f"[{gain.low:.3f}, {gain.high:.3f}] over {int(two.sum())} held-out questions; without passages "
            f"{run['without_passages']:.3f}."
        )
    (folder / "report.md").write_text("\n".join(lines) + "\n")
    print("\n".join(lines[-len(results["runs"]) :]), flush=True)
    try:
        import matplotlib

        matplotlib.use("Agg")
        from matplotlib import pyplot
    except ImportError:
        print("no curves.png: matplotlib is not installed")
        return
    figure, axes = pyplot.subplots(figsize=(6, 4))
    for policy, run in results["runs"].items():
        for hops, style in (("two_hop", "-"), ("one_hop", ":")):
            axes.plot(
                [r["step"] for r in run["curve"]], [r[hops] for r in run["curve"]], style, label=f"{policy}, {hops}"
            )
    axes.set(xlabel="step", ylabel="held-out success rate (sampled)", ylim=(0, 1))
    axes.legend()
    figure.tight_layout()
    figure.savefig(folder / "curves.png", dpi=120)


def show(step: int, steps: int, loss: float) -> None:
    print(f"warm start {step}/{steps}: loss {loss:.4f}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, default=Path("runs/search-proof"))
    parser.add_argument("--policies", nargs="+", default=["uniform", "vip"])
    parser.add_argument("--estimator", default="rloo", choices=["rloo", "dr_grpo"])
    parser.add_argument("--predictor", default="calibrated")
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--budget", type=int, default=128, help="rollouts of a step, C")
    parser.add_argument("--group-size", type=int, default=8)
    parser.add_argument("--learning-rate", type=float, default=5e-4)
    parser.add_argument("--train-size", type=int, default=240)
    parser.add_argument("--test-size", type=int, default=120)
    parser.add_argument("--samples", type=int, default=2)
    parser.add_argument("--eval-every", type=int, default=10)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--threads", type=int, default=int(os.environ.get("OMP_NUM_THREADS", "2")))
    parser.add_argument("--smoke", action="store_true", help="a minute: shows that everything runs, not that it learns")
    args = parser.parse_args()
    recipe = WarmStart(seed=args.seed)
    if args.smoke:
        args.steps, args.budget, args.group_size, args.eval_every = 2, 32, 4, 2
        args.train_size, args.test_size, args.samples = 24, 12, 1
        recipe = WarmStart(one_hop_steps=3, clean_steps=3, erring_steps=3, worlds=1, questions=8, batch_size=8)
    torch.set_num_threads(args.threads)
    args.output.mkdir(parents=True, exist_ok=True)
    world = FactWorld(seed=args.seed)
    tokenizer = prepare_tokenizer(build_tokenizer(world))
    model = build_model(tokenizer, seed=args.seed)
    kept = args.output / ("warm-smoke.pt" if args.smoke else f"warm-seed{args.seed}.pt")
    began = time.time()
    if kept.exists():
        model.load_state_dict(torch.load(kept, weights_only=True))
    else:
        warm_start(model, tokenizer, world, recipe, progress=show)
        torch.save(model.state_dict(), kept)
    results: dict[str, Any] = {
        "arguments": {k: str(v) for k, v in vars(args).items()},
        "warm_start_seconds": time.time() - began,
        "runs": {},
    }
    for policy in args.policies:
        results["runs"][policy] = train(policy, copy.deepcopy(model), tokenizer, world, args)
        report(results, args.output)


if __name__ == "__main__":
    main()
