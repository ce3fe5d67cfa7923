"""verl's V1 synchronous trainer with a group size per prompt.

verl's agent loop reads a per-prompt number of rollouts from the batch field ``__rollout_n__``. This subclass fills it
from the step's plan, and observes the rewards before verl turns them into advantages; everything else is verl's. With
``+viprl.candidates`` above 1 a step fetches so many batches and submits those prompts that the allocator keeps.
"""

from __future__ import annotations

import dataclasses
import logging
import os
import time
from pathlib import Path
from typing import Any

import numpy as np
import transfer_queue as tq
from omegaconf import DictConfig, open_dict
from tensordict import TensorDict
from transfer_queue import KVBatchMeta
from verl.trainer.ppo.v1 import PPOTrainerSync, register_trainer
from verl.utils import tensordict_utils as tu

from viprl.allocator import RolloutAllocator
from viprl.errors import CheckpointError, ConfigurationError
from viprl.history import HistoryWriter
from viprl.integrations.verl import TRAINER_MODE, learned
from viprl.integrations.verl.advantages import is_padding, weighing
from viprl.integrations.verl.agent_loop import MANAGER_PATH
from viprl.integrations.verl.budget import batches_offered
from viprl.integrations.verl.checks import check_config
from viprl.integrations.verl.ledger import (
    MissingRewardsError,
    PlanLedger,
    extra_rewards,
    parse_key,
    repair_score_metrics,
)
from viprl.integrations.verl.setup import ID_COLUMN, allocator_of_run, prompts_of_dataset
from viprl.plan import Plan

logger = logging.getLogger("viprl")

STATE_FILE = "viprl.npz"
EXTRA = "extra_fields"  # of a row, and what its reward function returned beside the score


@register_trainer(TRAINER_MODE)
class AdaptiveTrainerSync(PPOTrainerSync):
    """PPOTrainerSync whose prompts get their rollouts from a RolloutAllocator.

    Raises:
        ConfigurationError, InfeasibleBudgetError: the run cannot be honoured; see ``checks.py``.
    """

    # verl branches on this string; any other value than "sync" selects the asynchronous replay buffer, which submits
    # failed prompts again for ever.
    trainer_mode = property(lambda self: "sync", lambda self, value: None)

    def __init__(self, config: DictConfig) -> None:
        if logger.level == logging.NOTSET:  # verl's root logger shows warnings alone; its modules set their own level
            logger.setLevel(os.getenv("VERL_LOGGING_LEVEL", "INFO"))
        self.run = check_config(config)
        agent = config.actor_rollout_ref.rollout.agent
        if not agent.get("agent_loop_manager_class"):
            with open_dict(config):
                agent.agent_loop_manager_class = MANAGER_PATH
        self.ledger = PlanLedger()
        self.selected: Plan | None = None  # of the batch that was fetched last
        self.allocator: RolloutAllocator
        self._rewards: np.ndarray = np.zeros(0)
        super().__init__(config)
        self.history = HistoryWriter(str(self.run.options.history_dir))

    def _init_dataloader(self) -> None:
        super()._init_dataloader()
        prompt_column = self.config.data.get("prompt_key", "prompt")
        prompts = prompts_of_dataset(self.train_dataset, prompt_column=prompt_column, settings=self.run.settings)
        self._offer(len(self.train_dataset))
        self.allocator = allocator_of_run(prompts, self.run)

    def _offer(self, rows: int) -> None:
        """Fewer candidates where the data set has no more; one batch of them leaves no choice."""
        wanted = self.run.settings.candidates
        offered = batches_offered(self.config, wanted, rows)
        if offered < wanted:
            batch = self.run.budget.prompts
            logger.warning(
                "viprl: candidates * train_batch_size = %d * %d prompts a step are more than an epoch of the %d rows "
                "holds; a step is offered %d * %d%s",
                *(wanted, batch, rows, offered, batch, "" if offered > 1 else ", and all of them get rollouts"),
            )
            self.run = dataclasses.replace(self.run, settings=self.run.settings.replace(candidates=offered))

    def _next_train_batch(self, num_prompts: int | None = None) -> TensorDict:
        offered = self.run.settings.candidates
        if offered == 1:
            return super()._next_train_batch(num_prompts)
        prompts = self.run.budget.prompts if num_prompts is None else num_prompts
        batch = super()._next_train_batch(offered * prompts)
        start = time.perf_counter()
        # where one epoch ends and the next begins, a prompt may come twice: it is offered once
        rows: dict[str, int] = {}
        for row, prompt_id in enumerate(batch[ID_COLUMN]):
            rows.setdefault(str(prompt_id), row)
        self.selected = self.allocator.select(list(rows), self.run.budget.of(prompts))
        kept = np.array(list(rows.values()))[self.selected.kept]
        self.timing_raw["viprl_select"] = time.perf_counter() - start
        return tu.index_select_tensor_dict(batch, kept.tolist())

    def _submit_batch_to_rollout(self, batch: TensorDict) -> int:
        start = time.perf_counter()
        prompt_ids = [str(prompt_id) for prompt_id in batch[ID_COLUMN]]
        plan, self.selected = self.selected, None
        if plan is None:
            plan = self.allocator.allocate(prompt_ids, self.run.budget.of(len(prompt_ids)))
        self.ledger.open(plan, [str(uid) for uid in batch["uid"]])
        tu.assign_non_tensor_stack(batch, "__rollout_n__", plan.group_sizes.tolist())
        self.timing_raw["viprl_allocate"] = time.perf_counter() - start
        return super()._submit_batch_to_rollout(batch)

    def _step_once(self, metrics: dict, timing_raw: dict, sample_batch_size: int) -> KVBatchMeta:
        # the replay buffer waits for so many groups, and a selection keeps more or fewer than train_batch_size
        return super()._step_once(metrics, timing_raw, self.ledger.groups)

    def step(self, metrics: dict, timing_raw: dict) -> KVBatchMeta:
        try:
            return super().step(metrics, timing_raw)
        except RuntimeError as error:
            if "no materializable trajectories" not in str(error):
                raise
            raise MissingRewardsError(
                f"at least one rollout of step {self.global_steps} must come back, but all of them failed; look for "
                "'Error in _run_prompt' in the logs of the agent loop workers"
            ) from error

    def _balance_batch(self, batch: KVBatchMeta, metrics: dict, *args: Any, **kwargs: Any) -> KVBatchMeta:
        # TransferQueue lists rows in the order in which they finished; sums of gradients should not depend on it.
        batch.reorder(self.ledger.order(batch.keys))
        return super()._balance_batch(batch, metrics, *args, **kwargs)

    def _compute_advantage(self, batch: KVBatchMeta, metrics: dict) -> KVBatchMeta:
        start = time.perf_counter()
        fields = ["rm_scores", *(learned.FIELDS if self.run.learns_variance else ())]
        if self.run.settings.success_function is not None:
            fields.append(EXTRA)
        data = tq.kv_batch_get(keys=batch.keys, partition_id=batch.partition_id, select_fields=fields)
        columns = {field: list(data[field] if field == EXTRA else data[field].unbind()) for field in fields}
        self.timing_raw["viprl_fetch"] = time.perf_counter() - start
        start = time.perf_counter()
        uids = [parse_key(key)[0] for key in batch.keys]
        real = [row for row, uid in enumerate(uids) if not is_padding(uid)]
        weights = self.ledger.weights()
        self._observe(
            [uids[row] for row in real],
            np.array([batch.tags[row]["response_len"] for row in real]),
            {field: [column[row] for row in real] for field, column in columns.items()},
            metrics,
        )
        metrics["viprl/padding_rows"] = len(uids) - len(real)
        self.timing_raw["viprl_observe"] = time.perf_counter() - start
        with weighing(weights):
            return super()._compute_advantage(batch, metrics)

    def _observe(self, uids: list[str], tokens: np.ndarray, columns: dict[str, list], metrics: dict) -> None:
        self._rewards = np.array([float(row.sum()) for row in columns["rm_scores"]])
        norms = None
        if self.run.learns_variance:
            logs, masks = (columns[field] for field in learned.FIELDS)
            norms = learned.squared_norms(logs, masks, learned.token_aggregation(self.config))
        settings = self.run.settings
        name = settings.success_function
        answers = self.ledger.settle(
            uids,
            self._rewards,
            tokens,
            squared_norms=norms,
            successes=None if name is None else extra_rewards(columns[EXTRA], name, settings.success_threshold),
            max_missing=self.run.options.max_missing,
            step=self.global_steps,
        )
        for answer in answers:
            outcomes = None if name is None else answer.successes
            norms = answer.squared_norms if self.run.learns_variance else None
            self.allocator.observe(
                answer.plan, answer.rewards, successes=outcomes, squared_norms=norms, tokens=answer.tokens
            )
            self.history.add(self.allocator.history_rows())
            metrics.update({name: float(value) for name, value in self.allocator.metrics().items()})
        metrics["viprl/missing_rewards"] = sum(answer.missing for answer in answers)

    def _compute_metrics(self, batch: KVBatchMeta, metrics: dict, *args: Any, **kwargs: Any) -> None:
        super()._compute_metrics(batch, metrics, *args, **kwargs)
        if np.isnan(self._rewards).any() and not self.config.algorithm.use_kl_in_reward:
            repair_score_metrics(metrics, self._rewards.tolist())

    def on_step_end(self) -> None:
        super().on_step_end()
        if self.global_steps >= self.total_training_steps:
            self.history.flush()

    def on_train_end(self) -> None:
        super().on_train_end()
        self.history.flush()

    def _save_checkpoint(self) -> None:
        # Before verl's own files: its tracker is the last one written, so a checkpoint that counts has our state.
        start = time.perf_counter()
        folder = Path(self.config.trainer.default_local_dir, f"global_step_{self.global_steps}")
        folder.mkdir(parents=True, exist_ok=True)
        self.allocator.save(folder / STATE_FILE)
        self.history.flush()
        self.timing_raw["viprl_save"] = time.perf_counter() - start
        super()._save_checkpoint()

    def _load_checkpoint(self) -> None:
        super()._load_checkpoint()
        if self.global_steps > 0:
            self._restore(Path(self._checkpoint_folder(), STATE_FILE))
        dropped = self.history.cut_back(self.allocator.step)
        if dropped:
            logger.info("viprl: dropped %d history rows written after step %d", dropped, self.allocator.step)

    def _checkpoint_folder(self) -> str:
        trainer = self.config.trainer
        if trainer.resume_mode == "resume_path":
            return str(trainer.resume_from_path)
        return os.path.join(trainer.default_local_dir, f"global_step_{self.global_steps}")

    def _restore(self, path: Path) -> None:
        if not path.exists():
            if not self.run.options.fresh_state:
                raise CheckpointError(
                    f"a resumed run needs the allocator's state, but {path} does not exist; set "
                    "+viprl.fresh_state=true to go on from a checkpoint of stock verl with a cold predictor"
                )
            logger.warning("viprl: %s does not exist; the predictor starts cold", path)
            return
        from viprl.checkpoint import read_state

        self.allocator.load_state_dict(read_state(path))
        report = self.allocator.restored
        logger.info("viprl: restored the allocator at step %d from %s", self.allocator.step, path)
        if report is not None and (report.new or report.gone):
            counts = [len(ids) for ids in (report.new, report.gone, report.kept)]
            logger.warning("viprl: the data set has changed: %d prompts are new, %d gone, %d kept", *counts)


def _refusing(name: str) -> type[PPOTrainerSync]:
    """A trainer that says why it does not exist, instead of verl's list of names."""

    class Refused(PPOTrainerSync):
        def __init__(self, config: DictConfig) -> None:
            raise ConfigurationError(
                f"trainer.v1.trainer_mode must be {TRAINER_MODE} with adaptive rollouts, but got {name}: asynchronous "
                "trainers fetch prompts one by one and train on rollouts of older policies, so a step has no batch to "
                "divide a budget over"
            )

    return Refused


for _mode in ("viprl_colocate_async", "viprl_separate_async", "viprl_one_step_off_policy"):
    register_trainer(_mode)(_refusing(_mode))
