"""The paper's Table 2: tool use, trained on MuSiQue, tested on Bamboogle and MuSiQue; uniform and VIP at one budget.

    viprl serve-search WIKIPEDIA --retriever dense:intfloat/e5-base-v2          # in another shell
    accelerate launch experiments/search/table2.py --train musique_train.jsonl --bamboogle bamboogle.jsonl \
        --musique musique_dev.jsonl --retriever http://127.0.0.1:8000 --output runs/table2

    python experiments/search/table2.py --smoke --output runs/table2-smoke       # a tiny model and world, on a CPU

One row for each estimator and policy. Settings follow the paper's appendix where it states them (AdamW, learning rate
1e-6, 20 warm-up steps, 512 prompts a step, 8 rollouts a prompt, temperature 1, two epochs, at most 10,240 new tokens,
top 5 passages); group bounds are not stated there: 3 to 32 here. ``--set name=value`` changes a setting of TRL's
config.
"""

from __future__ import annotations

import argparse
import json
import os
from pathlib import Path
from typing import Any

os.environ.setdefault("TRL_EXPERIMENTAL_SILENCE", "1")

import torch
from accelerate import PartialState
from datasets import Dataset
from transformers import AutoModelForCausalLM, AutoTokenizer

from viprl.errors import ConfigurationError
from viprl.integrations.trl import AdaptiveGRPOConfig, AdaptiveGRPOTrainer
from viprl.tasks.search.agent import LoopLimits, ModelGenerate, question_messages
from viprl.tasks.search.contamination import contamination
from viprl.tasks.search.corpus import load_corpus
from viprl.tasks.search.environment import SearchEnvironmentFactory, prepare_tokenizer
from viprl.tasks.search.evaluate import SearchEvaluation, evaluate_search
from viprl.tasks.search.indexes import build_retriever
from viprl.tasks.search.prefetch import PrefetchingRetriever
from viprl.tasks.search.protocol import SYSTEM_PROMPT
from viprl.tasks.search.questions import Question, load_questions
from viprl.tasks.search.rewards import SearchReward
from viprl.tasks.search.session import SearchLimits
from viprl.tasks.search.tiny import WarmStart, build_model, build_tokenizer, warm_start
from viprl.tasks.search.world import FactWorld

# (estimator, policy) -> EM %, F1@5, P@5 on Bamboogle, then on MuSiQue, as published
PUBLISHED = {
    ("dr_grpo", "uniform"): ("20.0 / .282 / .293", "6.0 / .123 / .126"),
    ("dr_grpo", "vip"): ("23.2 / .333 / .353", "10.5 / .214 / .225"),
    ("rloo", "uniform"): ("10.4 / .190 / .225", "8.5 / .178 / .179"),
    ("rloo", "vip"): ("17.6 / .264 / .294", "11.0 / .209 / .211"),
}
QUESTIONS = dict[str, list[Question]]


def settings(args: argparse.Namespace, estimator: str, policy: str, folder: Path) -> AdaptiveGRPOConfig:
    """The trainer's configuration of one row."""
    processes = PartialState().num_processes
    budget = args.prompts * args.group_size
    micro = args.micro_batch or budget
    if budget % (micro * processes):
        raise ConfigurationError(
            f"prompts x group_size must be a multiple of micro_batch x processes, but got {budget} and "
            f"{micro} x {processes}"
        )
    steps = budget // (micro * processes)
    values: dict[str, Any] = {
        "output_dir": str(folder),
        "per_device_train_batch_size": micro,
        "steps_per_generation": steps,
        "gradient_accumulation_steps": max(1, steps // args.updates),
        "num_generations": args.group_size,
        "min_group_size": min(3, args.group_size),
        "max_group_size": 4 * args.group_size,
        "num_train_epochs": 2,
        "shuffle_dataset": False,  # a fixed prompt order
        "learning_rate": 1e-6,
        "lr_scheduler_type": "constant_with_warmup",
        "warmup_steps": 20,
        "max_completion_length": 10_240,
        "max_tool_calling_iterations": 8,
        "temperature": 1.0,
        "beta": 0.0,
        "loss_type": "dr_grpo",
        "scale_rewards": "none",
        "estimator": estimator,
        "policy": policy,
        "prompt_id_column": "prompt_id",
        "report_to": "none",
        "save_total_limit": 1,
        "seed": args.seed,
    }
    if not torch.cuda.is_available():
        values |= {"use_cpu": True, "bf16": False, "gradient_checkpointing": False}
    for pair in args.set:
        name, _, value = pair.partition("=")
        values[name] = json.loads(value) if value[:1] in '-0123456789[{tfn"' else value
    return AdaptiveGRPOConfig(**values)


def run_row(args: argparse.Namespace, estimator: str, policy: str, parts: dict[str, Any]) -> dict[str, Any]:
    """Train one row and evaluate it on both test sets."""
    folder = args.output / f"{estimator}-{policy}"
    model, tokenizer = parts["load"]()
    retriever = PrefetchingRetriever(parts["retriever"], top_k=args.top_k)
    prepare_tokenizer(tokenizer, prefetch=retriever.prefetch)
    limits = SearchLimits(top_k=args.top_k, max_calls=args.max_calls)
    config = settings(args, estimator, policy, folder)
    rows = [
        {"prompt": question_messages(q.question, parts["system"]), "prompt_id": q.id, "answers": list(q.answers)}
        for q in parts["train"]
    ]
    trainer = AdaptiveGRPOTrainer(
        model,
        SearchReward("em"),
        config,
        Dataset.from_list(rows),
        processing_class=tokenizer,
        environment_factory=SearchEnvironmentFactory(retriever, tokenizer, limits=limits),
    )
    trainer.train()
    result: dict[str, Any] = {"estimator": estimator, "policy": policy, "steps": trainer.state.global_step}
    if trainer.accelerator.is_main_process:
        plain = SearchEnvironmentFactory(parts["retriever"], tokenizer, limits=limits)
        unwrapped = trainer.accelerator.unwrap_model(trainer.model).eval()
        loop = LoopLimits(max_turns=9, max_turn_tokens=parts["turn_tokens"], max_tokens=config.max_completion_length)
        for name, questions in parts["tests"].items():
            found = evaluate_search(
                ModelGenerate(unwrapped, tokenizer, temperature=0.0, batch_size=args.eval_batch),
                tokenizer,
                questions,
                plain.session,
                name=name,
                k=args.top_k,
                limits=loop,
                system_prompt=parts["system"],
            )
            found.write(folder / name)
            result[name] = numbers(found)
    trainer.accelerator.wait_for_everyone()
    retriever.close()
    return result


def numbers(found: SearchEvaluation) -> dict[str, float]:
    return {name: value.estimate for name, value in found.measures.items()}


def table(results: list[dict[str, Any]], names: list[str]) -> str:
    """Ours in both readings, beside the published figures."""
    lines = [
        "EM % / answer F1 / answer precision (retrieval F1 / precision where passages are marked) [published]",
        "",
        "| estimator | policy | " + " | ".join(names) + " |",
        "|---" * (len(names) + 2) + "|",
    ]
    for row in results:
        published = PUBLISHED.get((row["estimator"], row["policy"]), ("-", "-"))
        cells = []
        for name, known in zip(names, published, strict=False):
            m = row[name]
            cell = f"{100 * m['em']:.1f} / {m['answer_f1']:.3f} / {m['answer_precision']:.3f}"
            marked = [key for key in m if key.startswith(("retrieval_f1@", "retrieval_precision@"))]
            if marked:
                cell += " (" + " / ".join(f"{m[key]:.3f}" for key in marked) + ")"
            cells.append(f"{cell} [{known}]")
        lines.append(f"| {row['estimator']} | {row['policy']} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def real_parts(args: argparse.Namespace) -> dict[str, Any]:
    train = load_questions("musique", args.train, split="train")
    tests: QUESTIONS = {
        "bamboogle": load_questions("bamboogle", args.bamboogle),
        "musique": load_questions("musique", args.musique, split="validation"),
    }
    for name, questions in tests.items():
        found = contamination(train, questions)
        print(f"{name}: {found.summary()}", flush=True)
        train = [question for question in train if question.id not in {leak.train_id for leak in found.exact}]
    remote = args.retriever.startswith(("http://", "https://"))
    corpus = None if remote else load_corpus(args.corpus or args.musique)

    def load() -> tuple[Any, Any]:
        tokenizer = AutoTokenizer.from_pretrained(args.model)
        return AutoModelForCausalLM.from_pretrained(args.model, dtype="auto"), tokenizer

    return {
        "train": train,
        "tests": tests,
        "retriever": build_retriever(args.retriever, corpus),
        "load": load,
        "system": SYSTEM_PROMPT,
        "turn_tokens": 2048,
    }


def smoke_parts(args: argparse.Namespace) -> dict[str, Any]:
    """The same code on a tiny world; changes `args` to sizes of seconds."""
    world = FactWorld(people=16)
    train, test = world.split(24, 12)
    args.prompts, args.group_size, args.micro_batch, args.updates, args.top_k = 4, 4, 8, 1, 2
    args.set = [
        *("max_completion_length=200", "max_steps=2", "max_tool_calling_iterations=3", "disable_tqdm=true"),
        *('save_strategy="no"', "learning_rate=1e-4", *args.set),
    ]
    tokenizer = build_tokenizer(world)
    recipe = WarmStart(one_hop_steps=20, clean_steps=10, erring_steps=10, worlds=1, questions=12, batch_size=16)

    def load() -> tuple[Any, Any]:
        model = build_model(tokenizer)
        warm_start(model, tokenizer, world, recipe)
        return model, tokenizer

    return {
        "train": train,
        "tests": {"bamboogle": test[:4], "musique": test[4:]},
        "retriever": build_retriever("bm25", world.passages),
        "load": load,
        "system": None,
        "turn_tokens": 40,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, default=Path("runs/table2"))
    parser.add_argument("--model", default="Qwen/Qwen2.5-3B-Instruct")
    parser.add_argument("--train", help="MuSiQue's training file; default: from the hub")
    parser.add_argument("--bamboogle", help="Bamboogle's file; default: from the hub")
    parser.add_argument("--musique", help="MuSiQue's development file; default: from the hub")
    parser.add_argument("--retriever", default="bm25", help="bm25, dense:MODEL, or a server's URL")
    parser.add_argument("--corpus", help="passages for a local retriever; default: the paragraphs in --musique")
    parser.add_argument("--estimators", nargs="+", default=["dr_grpo", "rloo"])
    parser.add_argument("--policies", nargs="+", default=["uniform", "vip"])
    parser.add_argument("--prompts", type=int, default=512, help="of a step, B")
    parser.add_argument("--group-size", type=int, default=8, help="mean rollouts of a prompt: the budget is 8 x B")
    parser.add_argument("--micro-batch", type=int, help="rollouts of a process at a time; default: all")
    parser.add_argument("--updates", type=int, default=8, help="optimizer steps on one generation batch (512 / 64)")
    parser.add_argument("--top-k", type=int, default=5)
    parser.add_argument("--max-calls", type=int, default=8)
    parser.add_argument("--eval-batch", type=int, default=64)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--set", action="append", default=[], metavar="NAME=VALUE", help="a setting of TRL's config")
    parser.add_argument("--smoke", action="store_true")
    args = parser.parse_args()
    args.output.mkdir(parents=True, exist_ok=True)
    parts = smoke_parts(args) if args.smoke else real_parts(args)
    results = []
    for estimator in args.estimators:
        for policy in args.policies:
            results.append(run_row(args, estimator, policy, parts))
            if PartialState().is_main_process:
                (args.output / "results.json").write_text(json.dumps(results, indent=1) + "\n")
                (args.output / "table2.md").write_text(table(results, list(parts["tests"])) + "\n")
    if PartialState().is_main_process:
        print(table(results, list(parts["tests"])))


if __name__ == "__main__":
    main()
