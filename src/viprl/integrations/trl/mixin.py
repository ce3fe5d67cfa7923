"""The mixin that gives TRL's trainers uneven groups by re-expanding the batch late.

TRL's sampler, data loader, epochs and buffers stay as they are: a generation batch still holds B = C/G prompts, each G
times. When rollouts are due, the B prompts are expanded again, to n_q rows each with sum n_q = C, and every process
keeps its C/P rows. TRL then generates and scores rows; the advantages are computed here, by group. With candidates the
prompts that are expanded are chosen, at the same moment, from the batch's and others of the data set.

Notation: C rollouts of a generation batch, B prompts, G = num_generations, P processes; m prompts that get rollouts
(B, unless there are candidates).
"""

from __future__ import annotations

import copy
import logging
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from accelerate.utils import broadcast_object_list, gather_object

from viprl._arrays import FloatArray, IntArray
from viprl.advantages import advantages_by_row, float32_values
from viprl.build import build_allocator
from viprl.errors import ConfigurationError, InvalidInputError, ViprlError
from viprl.feedback import group_moments, reached
from viprl.history import HistoryWriter
from viprl.integrations.trl import contract, logs, setup, weights
from viprl.integrations.trl.candidates import Cursor, Decision, Pool
from viprl.integrations.trl.config import AdaptiveFields
from viprl.integrations.trl.resumable import ResumableMixin
from viprl.plan import Plan
from viprl.variance import OutcomeMoments

logger = logging.getLogger("viprl")

HISTORY_FOLDER = "history"


@dataclass(frozen=True)
class Step:
    """The last generation batch as trained.

    Attributes:
        prompt_ids: of the m prompts, in the order of the candidates (the data loader's first); one may occur twice.
        group_sizes: (m,).
        rows: (C,) prompt of every rollout.
        rewards: (C,) rewards that are trained (weighted, clipped, before any KL); NaN where missing.
        successes: (C,) of the reward function that defines success; None where the reward itself does.
        advantages: (C,) as trained.
        plan: the allocator's plan on the main process, None elsewhere.
    """

    prompt_ids: tuple[str, ...]
    group_sizes: IntArray
    rows: IntArray
    rewards: FloatArray
    advantages: FloatArray
    plan: Plan | None
    successes: FloatArray | None = None


class AdaptiveRolloutMixin(ResumableMixin):
    """Adaptive group sizes for GRPOTrainer and RLOOTrainer; see the head of the file.

    Args (beyond the parent's):
        allocator: a RolloutAllocator instead of the one that the config describes.
        predictor, policy: objects instead of the config's names.

    Attributes:
        allocator: on the main process; None elsewhere, where its decisions are received.
        last_step: the last generation batch, or None.
        history: the HistoryWriter, or None.
    """

    model: Any  # from here on the trainer's
    num_generations: Any
    reward_func_names: list[str]
    reward_weights: Any
    _log_completion_extra: Any
    _metrics: Any
    _logs: Any
    _signature_columns: Any
    _remove_unused_columns: Any

    _next_cursor: Cursor  # of the pool, once the batch in hand is observed
    _config_class: type[Any]
    _parent_class: type[Any]

    def __init__(
        self,
        model: Any,
        reward_funcs: Any = None,
        args: Any = None,
        train_dataset: Any = None,
        *rest: Any,
        allocator: Any = None,
        predictor: Any = None,
        policy: Any = None,
        **kwargs: Any,
    ) -> None:
        contract.check(self._parent_class)
        if args is None:
            name = model if isinstance(model, str) else getattr(model.config, "_name_or_path", "")
            args = self._config_class(f"{name.split('/')[-1] or 'model'}-{self._parent_class._name}")
        if not isinstance(args, AdaptiveFields):
            raise ConfigurationError(
                f"args must be an {self._config_class.__name__} (TRL's config with the allocator's fields), but got "
                f"{type(args).__name__}"
            )
        if allocator is not None and (predictor is not None or policy is not None):
            raise ConfigurationError("give an `allocator`, or a `predictor` and `policy`, but not both")
        weights.refuse_unequal_assumptions(args)
        _check_dataset(train_dataset, args)
        rule = setup.prompt_id_rule(train_dataset, args.prompt_id_column)
        self._success: str | None = None
        binary = allocator is None and (predictor is None or predictor.reward_kind == "binary")
        if binary and kwargs.get("environment_factory") is None:  # which may bring a reward of its own
            self._choose_success(args, setup.names_of(reward_funcs), args.reward_weights)
        super().__init__(model, reward_funcs, args, train_dataset, *rest, **kwargs)  # type: ignore[call-arg]
        weights.warn_about_rollout_terms(args, self.model.config)
        self._id_rule = rule
        self.last_step: Step | None = None
        self._pool: Pool | None = None
        self._extra_data: Any = None
        self._rewards_per_func: torch.Tensor | None = None
        if binary or args.success_reward is not None:
            self._choose_success(args, self.reward_func_names, self.reward_weights.tolist())
        self.allocator = None
        self.history: HistoryWriter | None = None
        args.variance = self._on_main(lambda: self._set_up(allocator, predictor, policy))

    def _choose_success(self, args: Any, functions: list[str], weights: list[float] | None) -> None:
        self._success = setup.success_of(args.settings, functions, weights)
        args.success_reward = args.success_reward or self._success
        args.settings.replace()  # refuses what does not go with it

    def _set_up(self, allocator: Any, predictor: Any, policy: Any) -> str:
        """Allocator and history of the main process; the variance in use, which every process must know."""
        selects = self.args.candidates > 1
        named = None
        if selects or (allocator is None and predictor is None):
            named = setup.named_rows(self.train_dataset, self._id_rule, self.args.settings)
        if selects and named is not None:
            seed = self.args.seed if self.args.data_seed is None else self.args.data_seed
            self._pool = Pool(named.row_ids, seed)
        prompts = None if named is None else named.prompts
        self.allocator = self._build(prompts, predictor, policy) if allocator is None else allocator
        if self.args.history_format != "none":
            folder = Path(self.args.output_dir) / HISTORY_FOLDER
            self.history = HistoryWriter(folder, format=self.args.history_format)
        if self.args.variance != "auto":
            return str(self.args.variance)
        return "learned" if isinstance(self.allocator.model, OutcomeMoments) else "formula"

    def _build(self, prompts: Any, predictor: Any, policy: Any) -> Any:
        settings = self.args.settings
        settings = settings.replace(reward_values=float32_values(settings.reward_values))
        return build_allocator(
            prompts if predictor is None else None,
            settings,
            predictor=predictor,
            policy=policy,
            not_learnable=self.args.gives_no_norms(),
        )

    # -- one generation batch ------------------------------------------------------------------------------------

    def _generate_and_score_completions(self, inputs: list[dict[str, Any]]) -> dict[str, Any]:
        if not self.model.training:
            self._log_completion_extra("prompt_id", [self._id_or_none(row) for row in inputs])
            if self.args.candidates > 1:
                self._log_completion_extra("kept_for", [None] * len(inputs))
            return super()._generate_and_score_completions(inputs)  # type: ignore[misc]
        begun = time.perf_counter()
        batch, offered = self._gather_prompts(inputs)
        plan, chosen = self._decide(offered, len(inputs) * self.accelerator.num_processes)
        ids, sizes = chosen.prompt_ids, chosen.sizes
        rows = np.repeat(np.arange(len(ids)), sizes)
        first = self.accelerator.process_index * len(inputs)
        local = slice(first, first + len(inputs))
        found = {q: self._row(batch, chosen.places[q]) for q in np.unique(rows[local]).tolist()}
        expanded = [copy.deepcopy(found[q]) for q in rows[local].tolist()]
        self._log_completion_extra("prompt_id", [ids[q] for q in rows[local]])
        if chosen.kept_for is not None:
            self._log_completion_extra("kept_for", [chosen.kept_for[q] for q in rows[local]])
        spent = time.perf_counter() - begun

        output = super()._generate_and_score_completions(expanded)  # type: ignore[misc]

        begun = time.perf_counter()
        rewards_per_func, rewards = self._collect_rewards()
        successes = self._successes(rewards_per_func)
        advantages = self._advantages(output, rewards, rows, sizes) * chosen.weights[rows]
        trained = output["advantages"]
        output["advantages"] = torch.as_tensor(advantages[local], dtype=trained.dtype, device=trained.device)
        self.last_step = Step(ids, sizes, rows, rewards, advantages, plan, successes)
        names = self.reward_func_names
        logs.mend(self._metrics["train"], names, rewards_per_func, rewards, rows, len(ids))
        logs.replace_last(self._logs["advantages"], advantages.tolist())
        tokens = self._gathered(output["completion_mask"].sum(dim=1))
        spent_tokens = np.asarray(np.bincount(rows, tokens, len(ids)), dtype=np.float64)
        metrics = self._on_main(lambda: self._learn(plan, rewards, successes, spent_tokens))
        metrics["viprl/overhead_seconds"] = spent + time.perf_counter() - begun
        for name, value in metrics.items():
            if np.isfinite(value):  # loggers that write JSON choke on infinities (RLOO's variance at a group of one)
                self._metrics["train"][name].append(value)
        return output

    def _gather_prompts(self, inputs: list[dict[str, Any]]) -> tuple[list[dict[str, Any]], list[str]]:
        """The rows of the batch's prompts and their ids, on every process. Groups are runs, whatever their ids."""
        group = self._repeats()
        first = self.accelerator.process_index * len(inputs)
        starts = [i for i in range(len(inputs)) if (first + i) % group == 0]
        for i, row in enumerate(inputs[1:], start=1):
            if i not in starts and row.get("prompt") != inputs[i - 1].get("prompt"):
                raise ConfigurationError(
                    f"a generation batch must hold each prompt {group} times in a row (TRL's RepeatSampler), but row "
                    f"{first + i} differs from the one before it inside a group"
                )
        batch = gather_object([inputs[i] for i in starts])
        return batch, [self._id_rule.id_of(row) for row in batch]

    def _decide(self, ids: list[str], budget: int) -> tuple[Plan | None, Decision]:
        """The plan, on the main process, and what follows from it, on every one."""
        plan: Plan | None = None

        def decide() -> Decision:
            nonlocal plan
            if self.args.candidates == 1:
                plan = self.allocator.allocate(ids, budget)
                return Decision.of(plan, len(ids), ())
            nominal, offered, rows = budget // self.num_generations, ids, list[int]()
            if self._pool is not None:
                rows, self._next_cursor = self._pool.offer(ids, self.args.candidates * nominal - len(ids))
                offered = [*ids, *(self._pool.row_ids[row] for row in rows)]
            plan = self.allocator.select(offered, budget, nominal=nominal)
            return Decision.of(plan, len(ids), rows)

        chosen: Decision = self._on_main(decide)
        sizes, count = chosen.sizes, len(chosen.prompt_ids)
        if len(sizes) != count or sizes.sum() != budget or sizes.min() < 1:
            raise InvalidInputError(
                f"group sizes must be {count} numbers of at least 1 with sum {budget}, but got {sizes.tolist()}"
            )
        return plan, chosen

    def _row(self, batch: list[dict[str, Any]], place: int) -> dict[str, Any]:
        """A prompt's row with the columns that the data loader's have; see ``Decision.places``."""
        if place < len(batch):
            return batch[place]
        if self._extra_data is None:
            self._extra_data = self._remove_unused_columns(self.train_dataset)
        row: dict[str, Any] = self._extra_data[int(place) - len(batch)]
        return row

    def _collect_rewards(self) -> tuple[FloatArray, FloatArray]:
        """(C, F) rewards per function and (C,) weighted sums, NaN where no function gave one."""
        if self._rewards_per_func is None:
            raise ConfigurationError("TRL must call _calculate_rewards once per generation batch, but did not")
        per_func = self._rewards_per_func.double().cpu().numpy()
        self._rewards_per_func = None
        total = np.nansum(per_func * self.reward_weights.double().cpu().numpy(), axis=1)
        total[np.isnan(per_func).all(axis=1)] = np.nan
        clip = getattr(self, "reward_clip_range", None)
        return per_func, np.clip(total, *clip) if clip else total

    def _successes(self, per_func: FloatArray) -> FloatArray | None:
        """(C,) rewards of the function that defines success, NaN where it gave none."""
        if self._success is None:
            return None
        given: FloatArray = per_func[:, self.reward_func_names.index(self._success)]
        return reached(given, self.args.settings.success_threshold)

    def _advantages(
        self, output: Mapping[str, Any], rewards: FloatArray, rows: IntArray, sizes: IntArray
    ) -> FloatArray:
        scored = rewards - self._penalty(output)
        if (sizes == self.num_generations).all() and not np.isnan(rewards).any() and self._is_parents_estimator():
            # Equal groups are what TRL computes: keep its numbers to the last bit, but for the rounding residue of
            # constant groups.
            dead = group_moments(scored, rows, len(sizes)).constant
            parent: FloatArray = self._gathered(output["advantages"])
            return np.where(dead[rows], 0.0, parent)
        return advantages_by_row(
            scored, rows, len(sizes), self.args.estimator, prompt_weighting=self.args.prompt_weighting
        )

    def _is_parents_estimator(self) -> bool:
        raise NotImplementedError

    def _penalty(self, output: Mapping[str, Any]) -> FloatArray | float:
        """What the trainer subtracts from the rewards of the C rollouts before computing advantages."""
        return 0.0

    def _learn(
        self, plan: Plan | None, rewards: FloatArray, successes: FloatArray | None, tokens: FloatArray
    ) -> dict[str, float]:
        self.allocator.observe(plan, rewards, successes=successes, tokens=tokens)
        if self._pool is not None:
            self._pool.cursor = self._next_cursor
        if self.history is not None:
            self.history.add(self.allocator.history_rows())
        metrics: dict[str, float] = self.allocator.metrics()
        return metrics

    # -- what TRL calls meanwhile ----------------------------------------------------------------------------------

    def _generate(self, prompts: list[Any]) -> Any:
        if not self.model.training:
            return super()._generate(prompts)  # type: ignore[misc]
        # vLLM takes every num_generations-th prompt and asks for that many completions; our rows are one each.
        with self._generations(1):
            return super()._generate(prompts)  # type: ignore[misc]

    def get_train_dataloader(self) -> Any:
        """As the parent's. A stream's batch of C rows holds all candidates: k times the prompts, each G / k times."""
        with self._generations(self._repeats()):
            return super().get_train_dataloader()  # type: ignore[misc]

    def _repeats(self) -> int:
        """Rows in a row with the same prompt, as the data loader brings them."""
        stream = not hasattr(self.train_dataset, "__len__")
        return int(self.num_generations) // (self.args.candidates if stream else 1)

    @contextmanager
    def _generations(self, count: int) -> Iterator[None]:
        """TRL's code inside sees ``count`` for its number of generations."""
        group, self.num_generations = self.num_generations, count
        try:
            yield
        finally:
            self.num_generations = group

    def _calculate_rewards(self, *args: Any, **kwargs: Any) -> torch.Tensor:
        self._rewards_per_func = super()._calculate_rewards(*args, **kwargs)  # type: ignore[misc]
        return self._rewards_per_func

    def _set_signature_columns_if_needed(self) -> None:
        super()._set_signature_columns_if_needed()  # type: ignore[misc]
        needed = [self.args.prompt_id_column] if self.args.prompt_id_column else list(setup.ID_COLUMNS)
        self._signature_columns += [name for name in needed if name not in self._signature_columns]

    # -- processes -------------------------------------------------------------------------------------------------

    def _on_main(self, work: Callable[[], Any]) -> Any:
        """The result of ``work`` on the main process, everywhere; an error is raised everywhere, so nobody waits."""
        answer: list[Any] = [None, None]
        failure: Exception | None = None
        if self.accelerator.is_main_process:
            try:
                answer[0] = work()
            except Exception as error:
                failure = error
                known = isinstance(error, ViprlError)  # others may not travel: their words do
                answer[1] = error if known else RuntimeError(f"the main process failed: {error!r}")
        broadcast_object_list(answer)
        if failure is not None:
            raise failure
        if answer[1] is not None:
            raise answer[1]
        return answer[0]

    def _gathered(self, local: torch.Tensor) -> FloatArray:
        return self.accelerator.gather(local).double().cpu().numpy()

    def _id_or_none(self, row: Mapping[str, Any]) -> str | None:
        try:
            return self._id_rule.id_of(row)
        except InvalidInputError:
            return None


def _check_dataset(dataset: Any, args: Any) -> None:
    if dataset is None:
        raise ConfigurationError("train_dataset must be given: the allocator learns about its prompts, but got None")
    prompts = args.generation_batch_size // args.num_generations
    if not hasattr(dataset, "__len__") and args.num_generations % args.candidates:
        raise ConfigurationError(
            "num_generations must be a multiple of candidates where the data set is a stream (which brings its "
            "candidates in TRL's own batch, each num_generations / candidates times), but got "
            f"(num_generations={args.num_generations}, candidates={args.candidates})"
        )
    if hasattr(dataset, "__len__") and len(dataset) < prompts:
        raise ConfigurationError(
            "the data set must hold at least the prompts of one generation batch, generation_batch_size / "
            f"num_generations, but got {len(dataset)} prompts for {args.generation_batch_size} / "
            f"{args.num_generations} = {prompts}"
        )
