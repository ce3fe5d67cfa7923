"""AllocationSettings: every setting of an allocator, its default, its range, and all checks between them.

TRL's configs, verl's ``+viprl.*``, ``viprl train``, ``viprl allocate`` and ``viprl replay`` take their settings from
here, so that what one of them refuses all refuse, in the same words, before a model is loaded or a file is written.

Notation: B prompts of a step, C its rollouts, G = C / B their mean, L <= n_q <= U the bounds of a group's size.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from viprl import registry
from viprl.errors import ConfigurationError, InfeasibleBudgetError

PROMPT_WEIGHTINGS = ("equal", "rollout")


def _setting(default: Any, text: str) -> Any:
    return field(default=default, metadata={"help": text})


@dataclass(frozen=True, kw_only=True)
class AllocationSettings:
    """What an allocator is to be; ``viprl.build_allocator`` makes it. A bad combination raises at construction.

    Each field's help text is in its metadata; docs/settings.md is generated from it.

    Raises:
        ConfigurationError: a name that is not known, a value out of its range, or settings that contradict each other.

    >>> AllocationSettings(predictor="beta", estimator="dr_grpo").predictor
    'discounted_beta'
    """

    estimator: str | None = _setting(
        None,
        "Advantages and variance model: 'rloo', 'dr_grpo', 'grpo' or 'maxrl'. None follows the trainer (rloo in a loop "
        "of your own).",
    )
    policy: str = _setting("vip", "How to divide the budget: a policy's name, such as 'vip' or 'uniform'.")
    predictor: str = _setting("calibrated", "Success probabilities: a predictor's name.")
    variance: str = _setting(
        "auto",
        "'formula': the paper's, from success probabilities alone. 'learned': from the gradient norms of past rollouts "
        "(rloo and dr_grpo). 'auto': learned where the estimator and the trainer allow it, else the formula.",
    )
    candidates: int = _setting(
        1,
        "Prompts offered for each prompt of a step; those that are worth it get rollouts. 1: every prompt of the batch "
        "gets some.",
    )
    selection: str = _setting(
        "learnability", "Which candidates get rollouts, a selection's name; plays no part with candidates=1."
    )
    exploration: float = _setting(0.1, "Share of a step's prompts that is drawn uniformly from the candidates.")
    max_rest: float | None = _setting(
        4.0,
        "Passes after which a candidate gets rollouts whatever it is worth; none never. (unbiased knows no such rule.)",
    )
    prompt_weighting: str = _setting(
        "equal",
        "'equal': every prompt weighs the same however many rollouts it got, by the factor (C/B)/n_q on its "
        "advantages. 'rollout': every rollout weighs the same.",
    )
    budget: int | None = _setting(None, "Rollouts of a step, C, spent exactly. None follows the trainer's batch.")
    min_group_size: int | None = _setting(
        None, "Fewest rollouts of a prompt, L. None is 3, or the mean group size where that is smaller."
    )
    max_group_size: int | None = _setting(
        None, "Most rollouts of a prompt, U. None is four times the mean group size (32 where none is known)."
    )
    guard: bool = _setting(True, "Fall back to uniform groups while allocation does worse than uniform.")
    success_reward: str | None = _setting(
        None,
        "What counts as success where the rewards that are trained are more than that: the name of one reward function "
        "(accuracy, while accuracy and format are trained), 'NAME>=X' where that one is graded, or a number: rewards "
        "from it on are successes. The predictor learns the success; the advantages use the whole reward.",
    )
    reward_values: tuple[float, float] | None = _setting(
        None, "The reward of a failure and of a success. None tells {0, 1} and {-1, 1} apart by itself."
    )
    prompt_id_column: str | None = _setting(
        None,
        "Column with stable prompt ids. None looks for extra_info.prompt_id, then data_source/index, then hashes the "
        "prompt's text.",
    )
    side_information: tuple[str, ...] = _setting(
        (), "Numeric columns for the predictor, such as another model's pass rate; what they say is learnt."
    )
    initial_rates: str | None = _setting(
        None, "Column with this model's own success rates in [0, 1], measured before the run; the prompts start there."
    )
    initial_rollouts: int | None = _setting(None, "Rollouts behind each of `initial_rates`.")
    initial_discount: float = _setting(
        0.5, "Share of `initial_rollouts` that counts, as the rates are older than the run."
    )
    embedding_model: str = _setting(
        "none",
        "Prompt embeddings beside the text statistics that the predictor computes itself: 'none', 'packaged' "
        "(all-MiniLM-L6-v2 from a wheel), 'hashed-ngrams', or the path or hub id of a sentence-transformers model.",
    )
    embedding_cache: str | None = _setting(None, "Folder that keeps embeddings between runs.")

    def __post_init__(self) -> None:
        for kind in ("policy", "predictor", "variance", "selection"):
            self._set(kind, registry.canonical(kind, getattr(self, kind)))  # type: ignore[arg-type]
        if self.estimator is not None:
            self._set("estimator", registry.canonical("estimator", self.estimator))
        self._check_values()
        self._check_rewards()
        self._check_predictor()
        self._check_variance()

    # -- what follows from the settings -------------------------------------------------------------------------------

    @property
    def success_at(self) -> float | None:
        """The rewards that are successes begin here; None where ``success_reward`` names a function or is absent."""
        return None if self.success_function else self.success_threshold

    @property
    def success_function(self) -> str | None:
        """The reward function that ``success_reward`` names; None where it is a number or absent."""
        name, graded, _ = (self.success_reward or "").rpartition(">=")
        return name.strip() or None if graded or self.success_threshold is not None else self.success_reward

    @property
    def success_threshold(self) -> float | None:
        """The number in ``success_reward``: of the function that it names, or of the whole reward."""
        return None if self.success_reward is None else _number(self.success_reward.rpartition(">=")[2])

    @property
    def real_rewards(self) -> bool:
        """The predictor learns the variance of real rewards instead of success probabilities."""
        return registry.find("predictor", self.predictor).rewards == "real"

    def replace(self, **changes: Any) -> AllocationSettings:
        """A copy with other values, checked again."""
        return dataclasses.replace(self, **changes)

    def for_step(self, prompts: int, budget: int) -> AllocationSettings:
        """The settings with budget and bounds filled in for steps of B prompts and C rollouts.

        L is by default min(3, C // B), U is 4 C / B.

        Raises:
            ConfigurationError: ``budget`` says something else.
            InfeasibleBudgetError: B L <= C <= B U does not hold.
        """
        if self.budget is not None and self.budget != budget:
            raise ConfigurationError(
                f"`budget` must be the rollouts of the trainer's step, but got budget={self.budget} and {budget}"
            )
        low = max(1, min(3, budget // max(prompts, 1))) if self.min_group_size is None else self.min_group_size
        high = max(low, math.ceil(4 * budget / max(prompts, 1))) if self.max_group_size is None else self.max_group_size
        if not (prompts >= 1 and low <= high and prompts * low <= budget <= prompts * high):
            raise InfeasibleBudgetError(
                "min_group_size <= budget / prompts <= max_group_size must hold, but got "
                f"min_group_size={low}, budget / prompts = {budget} / {prompts}, max_group_size={high}"
            )
        return self.replace(budget=budget, min_group_size=low, max_group_size=high)

    # -- checks -------------------------------------------------------------------------------------------------------

    def _set(self, name: str, value: Any) -> None:
        object.__setattr__(self, name, value)

    def _check_values(self) -> None:
        if self.prompt_weighting not in PROMPT_WEIGHTINGS:
            raise ConfigurationError(
                f"`prompt_weighting` must be one of {', '.join(PROMPT_WEIGHTINGS)}, but got {self.prompt_weighting!r}"
            )
        for name in ("candidates", "budget", "min_group_size", "max_group_size", "initial_rollouts"):
            value = getattr(self, name)
            if value is not None:
                if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                    raise ConfigurationError(f"`{name}` must be a positive integer, but got {value!r}")
        if not _is_number(self.exploration) or not 0 <= self.exploration <= 1:
            raise ConfigurationError(f"0 <= exploration <= 1 must hold, but got {self.exploration!r}")
        if self.max_rest is not None and not (_is_number(self.max_rest) and self.max_rest >= 1):
            raise ConfigurationError(f"max_rest >= 1 (or none) must hold, but got {self.max_rest!r}")
        low, high = self.min_group_size, self.max_group_size
        if low is not None and high is not None and low > high:
            raise ConfigurationError(
                f"min_group_size <= max_group_size must hold, but got (min_group_size={low}, max_group_size={high})"
            )
        if not isinstance(self.guard, bool):
            raise ConfigurationError(f"`guard` must be true or false, but got {self.guard!r}")
        for name in ("prompt_id_column", "initial_rates", "embedding_cache"):
            value = getattr(self, name)
            if value is not None and not isinstance(value, str):
                raise ConfigurationError(f"`{name}` must be text, but got {value!r}")
        if not isinstance(self.embedding_model, str) or not self.embedding_model:
            raise ConfigurationError(f"`embedding_model` must be 'none' or a model, but got {self.embedding_model!r}")
        side = self.side_information
        side = (
            () if side is None else (side,) if isinstance(side, str) or not isinstance(side, Sequence) else tuple(side)
        )
        if not all(isinstance(column, str) for column in side):
            raise ConfigurationError(f"`side_information` must name columns, but got {side!r}")
        self._set("side_information", side)

    def _check_rewards(self) -> None:
        values = self.reward_values
        if values is not None:
            pair = tuple(values) if isinstance(values, Sequence) and not isinstance(values, str) else ()
            numbers = [_is_number(v) and math.isfinite(v) for v in pair]
            if len(pair) != 2 or not all(numbers) or not pair[0] < pair[1]:
                raise ConfigurationError(
                    f"`reward_values` must be [failure, success], two numbers in ascending order, but got {values!r}"
                )
            self._set("reward_values", (float(pair[0]), float(pair[1])))
        if self.success_reward is not None:
            given = self.success_reward
            known = isinstance(given, str | int | float) and not isinstance(given, bool)
            self._set("success_reward", str(given).strip())
            at = self.success_threshold
            if (
                not known
                or not self.success_reward
                or not math.isfinite(0.0 if at is None else at)
                or (at is None and ">=" in self.success_reward)
            ):
                raise ConfigurationError(
                    "`success_reward` must be the name of a reward function, NAME>=X or a finite number, but got "
                    f"{given!r}"
                )
            if at is not None and values is not None:
                raise ConfigurationError(
                    "give `success_reward` as a number or `reward_values`, which say the same in two ways, but got "
                    f"success_reward={self.success_reward}, reward_values={values}"
                )

    def _check_predictor(self) -> None:
        entry = registry.find("predictor", self.predictor)
        if "embeddings" in entry.needs and self.embedding_model == "none":
            raise ConfigurationError(
                f"predictor={entry.name!r} needs embeddings, but got embedding_model='none'; use 'packaged' or a model"
            )
        if self.side_information and "side_information" not in entry.reads:
            readers = [e.name for e in registry.entries("predictor") if "side_information" in e.reads]
            raise ConfigurationError(
                f"`side_information` is read by {' and '.join(readers)} alone, but got predictor={entry.name!r}"
            )
        if self.embedding_model != "none" and "embeddings" not in entry.reads:
            readers = [e.name for e in registry.entries("predictor") if "embeddings" in e.reads]
            raise ConfigurationError(
                f"`embedding_model` is read by {', '.join(readers)} alone, but got predictor={entry.name!r} with "
                f"embedding_model={self.embedding_model!r}"
            )
        if (self.initial_rates is None) != (self.initial_rollouts is None):
            raise ConfigurationError(
                "`initial_rates` and `initial_rollouts` (how many rollouts are behind each rate) go together, but got "
                f"initial_rates={self.initial_rates!r}, initial_rollouts={self.initial_rollouts}"
            )
        if isinstance(self.initial_discount, str | bool) or not 0 < self.initial_discount <= 1:
            raise ConfigurationError(f"0 < initial_discount <= 1 must hold, but got {self.initial_discount}")
        if entry.rewards == "real":
            for name in ("success_reward", "reward_values", "initial_rates"):
                if getattr(self, name) is not None:
                    raise ConfigurationError(
                        f"predictor={entry.name!r} knows no success, so `{name}` must be None, but got "
                        f"{getattr(self, name)!r}; predictor='calibrated' learns successes"
                    )

    def _check_variance(self) -> None:
        if self.estimator == "maxrl":
            if self.real_rewards or (self.reward_values is not None and self.reward_values[0] != 0):
                raise ConfigurationError(
                    "estimator='maxrl' divides by the mean reward, so rewards must be 0 for failure and positive for "
                    f"success, but got predictor={self.predictor!r}, reward_values={self.reward_values}"
                )
            if self.policy == "relaxed":
                raise ConfigurationError("policy='relaxed' solves rloo, dr_grpo and grpo, but got estimator='maxrl'")
        reason = self.not_learnable()
        if self.variance == "learned" and reason is not None:
            raise ConfigurationError(f"variance='learned' {reason}; use variance='formula' or 'auto'")

    def not_learnable(self) -> str | None:
        """Why these settings rule out a learned variance, in words; None where they allow it."""
        if self.estimator in ("grpo", "maxrl"):
            return f"is derived for the estimators rloo and dr_grpo, but got estimator={self.estimator!r}"
        if self.real_rewards:
            return f"tells success from failure, but got predictor={self.predictor!r}"
        if self.success_reward is not None:
            return f"takes the success for the reward, but got success_reward={self.success_reward!r}"
        if self.policy == "relaxed":
            return "has curves that policy='relaxed' cannot solve"
        return None


def settings_fields(*, without: Sequence[str] = ()) -> tuple[dataclasses.Field[Any], ...]:
    """The fields of AllocationSettings, for those who offer them under their own roof."""
    return tuple(f for f in dataclasses.fields(AllocationSettings) if f.name not in without)


def settings_of(holder: Any, **known: Any) -> AllocationSettings:
    """AllocationSettings from an object (or mapping) with fields of the same names; ``known`` overrides them."""
    if isinstance(holder, Mapping):
        values = {f.name: holder[f.name] for f in settings_fields() if f.name in holder}
    else:
        values = {f.name: getattr(holder, f.name) for f in settings_fields() if hasattr(holder, f.name)}
    return AllocationSettings(**{**values, **known})


def settings_table() -> str:
    """The settings as a Markdown table: what docs/settings.md holds."""
    lines = ["| setting | default | what it is |", "|---|---|---|"]
    for item in settings_fields():
        default = "none" if item.default is None or item.default == () else f"`{item.default}`"
        choices = ""
        if item.name in ("predictor", "policy", "selection"):
            spelled = [f"`{e.name}`" + "".join(f" (`{a}`)" for a in e.aliases) for e in registry.entries(item.name)]  # type: ignore[arg-type]
            choices = f" One of {', '.join(spelled)}."
        lines.append(f"| `{item.name}` | {default} | {item.metadata['help']}{choices} |")
    return "\n".join(lines)


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None
