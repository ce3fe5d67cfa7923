"""A TRL script, and the two lines that make its rollouts adaptive.

    - from trl import RLOOConfig, RLOOTrainer
    + from viprl.integrations.trl import AdaptiveRLOOConfig as RLOOConfig, AdaptiveRLOOTrainer as RLOOTrainer

    - args = RLOOConfig(output_dir=..., num_generations=8, ...)
    + args = RLOOConfig(output_dir=..., num_generations=8, ..., prompt_id_column="prompt_id")

The second line is optional: without it prompts are named by a hash of their text. ``num_generations`` is now the mean
group size. Everything else stays: data, reward functions, callbacks, PEFT, vLLM, launchers.

Run it (no GPU, no hub; a 0.8 million parameter model that adds numbers, trained for a minute first):

    python examples/two_lines.py            # adaptive
    python examples/two_lines.py --stock    # the script before the change
"""

from __future__ import annotations

import argparse

from viprl.tasks.arithmetic import ArithmeticTask


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--stock", action="store_true", help="TRL's own trainer")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--batch", type=int, default=128, help="rollouts of a step")
    parser.add_argument("--warm-start", type=int, default=400, help="supervised steps before")
    parser.add_argument("--output", default="two_lines")
    options = parser.parse_args()

    if options.stock:
        from trl import RLOOConfig, RLOOTrainer
    else:
        from viprl.integrations.trl import AdaptiveRLOOConfig as RLOOConfig
        from viprl.integrations.trl import AdaptiveRLOOTrainer as RLOOTrainer

    task = ArithmeticTask(warm_start={"clean_steps": options.warm_start})
    model, tokenizer = task.build_model()
    args = RLOOConfig(
        output_dir=options.output,
        per_device_train_batch_size=options.batch,
        num_generations=8,
        max_completion_length=task.max_completion_length,
        max_steps=options.steps,
        learning_rate=1e-4,
        beta=0.0,
        logging_steps=1,
        save_strategy="no",
        report_to=[],
        bf16=False,
        gradient_checkpointing=False,
        disable_tqdm=True,
        **({} if options.stock else {"prompt_id_column": "prompt_id"}),
    )
    trainer = RLOOTrainer(
        model=model,
        reward_funcs=task.reward,
        args=args,
        train_dataset=task.train_dataset(),
        processing_class=tokenizer,
    )
    trainer.train()

    if not options.stock:
        step = trainer.last_step
        print("\nrollouts of the last step, by predicted success probability:")
        for q in step.plan.prediction.mean.argsort():
            p, n = step.plan.prediction.mean[q], step.group_sizes[q]
            print(f"  {step.prompt_ids[q]:>10}  p = {p:.2f}  {'#' * int(n)} {n}")


if __name__ == "__main__":
    main()
