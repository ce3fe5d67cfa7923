"""One run: one policy, one seed."""

from __future__ import annotations

import contextlib
import logging
import time
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from viprl.errors import ConfigurationError
from viprl.reports.progress import Progress
from viprl.tasks import HeldOut, Task, evaluate_heldout
from viprl.tasks.models import load_model
from viprl.training.arguments import check_types, is_main_process, load_reward, main_process_first, trainer_arguments
from viprl.training.callbacks import HeldOutEvaluation, MetricsFile, Recorder, StopSignal, read_json, write_json
from viprl.training.config import TrainConfig

METRICS_FILE = "metrics.jsonl"
SUMMARY_FILE = "summary.json"
MODEL_FOLDER = "model"


@dataclass(frozen=True)
class Run:
    """Where one run lives: ``<output>/<policy>-seed<seed>``."""

    policy: str
    seed: int
    folder: Path

    @property
    def name(self) -> str:
        return f"{self.policy}, seed {self.seed}"

    @property
    def metrics(self) -> MetricsFile:
        return MetricsFile(self.folder / METRICS_FILE)

    def summary(self) -> dict[str, Any] | None:
        """What a finished run wrote last; None while it is unfinished."""
        path = self.folder / SUMMARY_FILE
        return read_json(path) if path.exists() else None


def runs_of(config: TrainConfig) -> list[Run]:
    """All runs of a job, seed by seed."""
    output = Path(config.output)
    return [Run(policy, seed, output / f"{policy}-seed{seed}") for seed in config.seeds for policy in config.policies]


def train_one(config: TrainConfig, run: Run, task: Task, cache: Path, progress: Progress) -> bool:
    """Train one run to its end, or to the step at which it was told to stop; True when it reached its end."""
    from viprl.integrations.trl.resume import last_whole_checkpoint

    main = is_main_process()
    metrics = run.metrics if main else None
    checkpoint = last_whole_checkpoint(run.folder) if config.resume else None
    if metrics is not None:
        metrics.cut_back(_step_of(checkpoint)) if metrics.path.exists() else None
    trainer, evaluation, stop = build_trainer(config, run, task, cache, progress, metrics)
    steps = config.steps or 0
    progress.start(run.name, steps)
    begun = time.monotonic()
    with stop, _quiet():
        trainer.train(resume_from_checkpoint=checkpoint)
        reached = trainer.state.global_step
        if not stop.stopped and evaluation.last_step != reached:
            evaluation.run(trainer.model, reached)
    if stop.stopped:
        progress.message(f"{run.name}: stopped at step {reached}, saved in {run.folder}")
        return False
    if config.save_model:
        trainer.save_model(str(run.folder / MODEL_FOLDER))
    if main:
        _summarise(run, evaluation, reached, time.monotonic() - begun)
    return True


def trainer_settings(config: TrainConfig, run: Run, task: Task, cache: Path) -> Any:
    """TRL's config of one run; nothing is loaded or written for it.

    Raises:
        ConfigurationError: a value of the wrong type, or settings that TRL or the adaptive trainers refuse.
    """
    from viprl.integrations import trl
    from viprl.integrations.trl.weights import refuse_unequal_assumptions

    arguments = trainer_arguments(config, policy=run.policy, seed=run.seed, folder=run.folder, task=task, cache=cache)
    kind = trl.AdaptiveRLOOConfig if config.trainer_kind == "rloo" else trl.AdaptiveGRPOConfig
    check_types(kind, config.trainer)
    try:
        with _quiet():
            args = kind(**arguments)
    except ConfigurationError:
        raise
    except (TypeError, ValueError) as error:
        raise ConfigurationError(f"TRL refused the settings under `trainer`: {error}") from error
    refuse_unequal_assumptions(args)
    return args


def build_trainer(
    config: TrainConfig, run: Run, task: Task, cache: Path, progress: Progress, metrics: MetricsFile | None
) -> tuple[Any, HeldOutEvaluation, StopSignal]:
    """(trainer, its held-out evaluation, its stop signal)."""
    from transformers.trainer_callback import PrinterCallback, ProgressCallback

    from viprl.integrations import trl

    args = trainer_settings(config, run, task, cache)
    trainer_class = trl.AdaptiveRLOOTrainer if config.trainer_kind == "rloo" else trl.AdaptiveGRPOTrainer
    with _quiet(), main_process_first():  # a warm start is trained once, not by every process
        model, tokenizer = load_model(
            config.model,
            task,
            cache_dir=cache,
            model_init_kwargs=dict(config.trainer.get("model_init_kwargs") or {}),
            log=_warm_start_log(progress),
        )
    evaluation = HeldOutEvaluation(_evaluator(config, task, tokenizer), metrics, config.eval_every)
    stop = StopSignal(progress)
    trainer = trainer_class(
        model=model,
        reward_funcs=load_reward(config.reward, task),
        args=args,
        train_dataset=task.train_dataset(),
        processing_class=tokenizer,
        callbacks=[evaluation, Recorder(metrics, config.budget, progress), stop],
        **_trainer_options(config, task, tokenizer),
    )
    for callback in (PrinterCallback, ProgressCallback):
        trainer.remove_callback(callback)
    return trainer, evaluation, stop


def _trainer_options(config: TrainConfig, task: Task, tokenizer: Any) -> dict[str, Any]:
    options = task.trainer_options(tokenizer)
    if options and config.trainer_kind != "grpo":
        raise ConfigurationError(
            f"task {config.task_name!r} needs tools, which TRL's RLOOTrainer lacks; with algorithm=grpo the estimator "
            f"can stay {config.estimator!r}, but got algorithm={config.trainer_kind!r}"
        )
    return options


def _evaluator(config: TrainConfig, task: Task, tokenizer: Any) -> Any:
    """model -> HeldOut; every process generates for its share of the held-out prompts and receives the whole."""
    from accelerate.utils import gather_object

    dataset = task.test_dataset()

    def evaluate(model: Any) -> HeldOut:
        from accelerate import PartialState
        from accelerate.utils import extract_model_from_parallel

        state = PartialState()
        share = range(state.process_index, len(dataset), state.num_processes)
        found = evaluate_heldout(
            extract_model_from_parallel(model),
            tokenizer,
            task,
            samples=config.eval_samples,
            batch_size=config.eval_batch_size,
            seed=1 + state.process_index,
            dataset=dataset.select(share),
            max_completion_length=config.trainer.get("max_completion_length"),
        )
        rows = list(zip(found.prompt_ids, found.sampled.tolist(), found.greedy.tolist(), strict=True))
        everything = gather_object(rows)
        ids, sampled, greedy = zip(*everything, strict=True)
        return HeldOut(tuple(ids), np.array(sampled), np.array(greedy))

    return evaluate


def _summarise(run: Run, evaluation: HeldOutEvaluation, steps: int, seconds: float) -> None:
    rows = [row for row in run.metrics.read() if "heldout/sampled" in row]
    last = evaluation.last
    assert last is not None
    write_json(
        run.folder / SUMMARY_FILE,
        {
            "policy": run.policy,
            "seed": run.seed,
            "steps": steps,
            "seconds": seconds,
            "evaluation_seconds": evaluation.seconds,
            "heldout_start": {key: rows[0][f"heldout/{key}"] for key in ("sampled", "greedy")},
            "heldout_end": {"sampled": last.sampled_rate, "greedy": last.greedy_rate},
            "heldout_prompt_ids": list(last.prompt_ids),
            "heldout_sampled": [None if np.isnan(x) else float(x) for x in last.sampled],
        },
    )


def _step_of(checkpoint: str | None) -> int:
    return int(checkpoint.rpartition("-")[2]) if checkpoint else -1


def _warm_start_log(progress: Progress) -> Any:
    started = False

    def log(step: int, steps: int, loss: float) -> None:
        nonlocal started
        if not started:
            progress.start("warm start (at its end it copies a teacher's errors: the loss rises)", steps)
            started = True
        progress.update(step, loss=loss)

    return log


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """No bars and advice of other libraries between our lines; warnings of ours stay."""
    import datasets
    from transformers.utils import logging as transformers_logging

    datasets.disable_progress_bars()
    transformers_logging.disable_progress_bar()
    verbosity = transformers_logging.get_verbosity()
    transformers_logging.set_verbosity_error()
    with warnings.catch_warnings():
        for category in (FutureWarning, DeprecationWarning):
            warnings.simplefilter("ignore", category)
        try:
            yield
        finally:
            transformers_logging.set_verbosity(verbosity)
            logging.getLogger("viprl").setLevel(logging.INFO)
