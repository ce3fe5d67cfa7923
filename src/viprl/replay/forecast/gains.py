"""Before a run: what allocation can gain on prompts with these success rates, and which L, U and C to take.

Notation: N prompts with observed rates, B prompts a step, C = budget of a step, g = C / B the mean group size, L and U
the bounds, a = p(1-p), f the variance model's factor.

Everything is expectation over the estimated distribution of p and over simulated steps. Drift and text are left out:
the figures are what a prompt's own past visits are worth while p stands still.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from scipy.special import xlog1py, xlogy

from viprl._arrays import FloatArray
from viprl.allocation import solve_allocation
from viprl.errors import InfeasibleBudgetError, InvalidInputError
from viprl.replay.rates import Rates, estimate_distribution
from viprl.variance import SeparableVariance

STEPS = 40
GROUP_SIZES = (4, 6, 8, 12, 16, 24, 32, 64)
LOWERS = (2, 3, 4, 5, 6)
UPPER_FACTORS = (1.5, 2, 3, 4, 6, 8)
WORTH = 0.01  # a ratio this much lower is worth a wider bound


@dataclass(frozen=True)
class Gain:
    """Variance of a step relative to uniform groups, for one choice of bounds and budget.

    Attributes:
        group_size, lower, upper: g, L, U.
        oracle: the best allocation, which knows p.
        second, fourth: an allocator that has seen one, or three, earlier visits of g rollouts of each prompt.
    """

    group_size: float
    lower: int
    upper: int
    oracle: float
    second: float
    fourth: float


@dataclass(frozen=True)
class BudgetRow:
    """One budget.

    Attributes:
        group_size, budget: g and C.
        dead_uniform, dead_allocated: expected share of groups whose rewards are all equal, under uniform groups and
            under the allocation of a second visit.
        variance: of uniform groups at this budget, relative to the budget asked about.
        allocated_variance: the same for the allocation of a second visit.
        efficiency: variance times rollouts of uniform groups, relative to endless groups: 1 is the best that more
            rollouts a prompt can give; 1.14 means 14% of the rollouts pay for the baseline.
    """

    group_size: int
    budget: int
    dead_uniform: float
    dead_allocated: float
    variance: float
    allocated_variance: float
    efficiency: float


@dataclass
class Forecast:
    """What ``viprl forecast`` says.

    Attributes:
        prompts, batch, budget: N, B, C.
        mean_rate: of the estimated distribution.
        always, never: share of prompts with p above .99 and below .01.
        dead_groups: expected dead groups of a step of uniform groups; ``dead_share`` of all.
        dead_prompts: the part of that share that no group size under 64 would revive.
        gain: at the recommended bounds.
        bounds: all combinations tried.
        budgets: other budgets.
        lower, upper, group_size: recommended.
        grid, weights: (M,) estimated distribution of p.
    """

    prompts: int
    batch: int
    budget: int
    mean_rate: float
    always: float
    never: float
    dead_groups: float
    dead_share: float
    dead_prompts: float
    gain: Gain
    bounds: list[Gain]
    budgets: list[BudgetRow]
    lower: int
    upper: int
    group_size: int
    grid: FloatArray = field(default_factory=lambda: np.empty(0))
    weights: FloatArray = field(default_factory=lambda: np.empty(0))


def forecast(
    rates: Rates,
    budget: int,
    model: SeparableVariance,
    *,
    batch: int | None = None,
    seed: int = 0,
) -> Forecast:
    """Forecast for a step of ``budget`` rollouts over ``batch`` prompts drawn from those of ``rates``.

    Args:
        batch: B; by default budget / 8, at least one.

    Raises:
        InvalidInputError: fewer than two rollouts a prompt.
    """
    prompts = max(1, budget // 8) if batch is None else batch
    if seed < 0:
        raise InvalidInputError(f"seed >= 0 must hold, but got {seed}")
    if prompts < 1 or budget < 2 * prompts:
        raise InvalidInputError(f"budget >= 2 * batch >= 2 must hold, but got (budget={budget}, batch={prompts})")
    grid, weights = estimate_distribution(rates)
    simulator = _Simulator(grid, weights, model, prompts, seed)
    g = budget / prompts
    bounds = [
        simulator.gain(budget, low, high)
        for low in LOWERS
        for high in sorted({int(np.ceil(factor * g)) for factor in UPPER_FACTORS})
        if low <= g <= high and (low >= 3 or model.name != "dr_grpo")
    ]
    if not bounds:
        raise InfeasibleBudgetError(f"some bounds 2 <= L <= budget / batch must exist, but got budget / batch = {g:g}")
    chosen = _choose_bounds(bounds)
    budgets = _budget_rows(simulator, budget, chosen)
    dead = weights @ (grid**g + (1 - grid) ** g)
    hopeless = weights @ (grid**64 + (1 - grid) ** 64)
    return Forecast(
        prompts=len(rates.prompt_ids),
        batch=prompts,
        budget=budget,
        mean_rate=float(weights @ grid),
        always=float(weights[grid > 0.99].sum()),
        never=float(weights[grid < 0.01].sum()),
        dead_groups=float(dead * prompts),
        dead_share=float(dead),
        dead_prompts=float(hopeless),
        gain=chosen,
        bounds=bounds,
        budgets=budgets,
        lower=chosen.lower,
        upper=chosen.upper,
        group_size=_choose_group_size(budgets, chosen),
        grid=grid,
        weights=weights,
    )


class _Simulator:
    """Simulated steps of B prompts from the distribution; the same steps for every choice that is compared."""

    def __init__(self, grid: FloatArray, weights: FloatArray, model: SeparableVariance, batch: int, seed: int) -> None:
        self.grid, self.weights, self.model, self.batch = grid, weights, model, batch
        rng = np.random.default_rng(seed)
        self.steps = max(4, min(STEPS, 40_000 // batch))
        self.p = grid[rng.choice(len(grid), (self.steps, batch), p=weights)]
        self.seed = seed
        self._beliefs: dict[tuple[float, int], FloatArray] = {}

    def gain(self, budget: int, lower: int, upper: int) -> Gain:
        g = budget / self.batch
        uniform = float((self.p * (1 - self.p)).sum() * self.model.factor(np.array([g]))[0])
        ratios = [
            self.variance(weight, budget, lower, upper)[0] / uniform if uniform > 0 else 1.0
            for weight in (self.p * (1 - self.p), self.belief(g, 1), self.belief(g, 3))
        ]
        return Gain(g, lower, upper, *ratios)

    def variance(self, weight: FloatArray, budget: int, lower: int, upper: int) -> tuple[float, float]:
        """Sum of true variances, and expected share of dead groups, when allocating by ``weight`` (steps, B)."""
        total = dead = 0.0
        for p, w in zip(self.p, weight, strict=True):
            n = solve_allocation(self.model, w, budget, lower, upper)
            total += float((p * (1 - p) * self.model.factor(n)).sum())
            dead += float((p**n + (1 - p) ** n).mean())
        return total, dead / self.steps

    def belief(self, g: float, visits: int) -> FloatArray:
        """(steps, B) posterior mean of p(1-p) after that many earlier visits of g uniform rollouts."""
        key = (g, visits)
        if key not in self._beliefs:
            n = round(g * visits)
            rng = np.random.default_rng([self.seed, visits, n])
            k = rng.binomial(n, self.p)
            table = self._posterior_variance(n)
            self._beliefs[key] = table[k]
        return self._beliefs[key]

    def _posterior_variance(self, n: int) -> FloatArray:
        """(n + 1,) E[p(1-p) | k successes of n]."""
        k = np.arange(n + 1, dtype=np.float64)[:, None]
        log_likelihood = xlogy(k, self.grid) + xlog1py(n - k, -self.grid)
        top = log_likelihood.max(axis=1, keepdims=True)
        posterior = np.exp(log_likelihood - np.where(np.isfinite(top), top, 0.0)) * self.weights
        mass = posterior.sum(axis=1)
        result = np.full(n + 1, float(self.weights @ (self.grid * (1 - self.grid))))
        known = mass > 0  # counts that the distribution rules out keep its mean
        result[known] = posterior[known] @ (self.grid * (1 - self.grid)) / mass[known]
        return result


def _choose_bounds(bounds: Sequence[Gain]) -> Gain:
    """The narrowest bounds whose ratios at the fourth visit come within ``WORTH`` of the best."""
    best = min(b.fourth for b in bounds)
    near = [b for b in bounds if b.fourth <= best + WORTH]
    return min(near, key=lambda b: (-b.lower, b.upper))


def _budget_rows(simulator: _Simulator, budget: int, chosen: Gain) -> list[BudgetRow]:
    model, batch = simulator.model, simulator.batch
    g0 = budget / batch
    grid, weights = simulator.grid, simulator.weights
    base = float(model.factor(np.array([g0]))[0])
    rows = []
    for g in sorted({*GROUP_SIZES, round(g0)}):
        if g < max(chosen.lower, 2):
            continue
        upper = max(g, int(np.ceil(chosen.upper / g0 * g)))
        lower = min(chosen.lower, max(2 if model.name == "rloo" else 3, g // 2))
        weight = simulator.belief(g, 1)
        uniform = float(model.factor(np.array([float(g)]))[0])
        total, dead = simulator.variance(weight, g * batch, lower, upper)
        everything = float((simulator.p * (1 - simulator.p)).sum())
        rows.append(
            BudgetRow(
                group_size=g,
                budget=g * batch,
                dead_uniform=float(weights @ (grid**g + (1 - grid) ** g)),
                dead_allocated=dead,
                variance=uniform / base,
                allocated_variance=total / everything / base if everything > 0 else uniform / base,
                efficiency=uniform * g,
            )
        )
    return rows


def _choose_group_size(rows: Sequence[BudgetRow], chosen: Gain) -> int:
    """The smallest mean group size that wastes at most 15% of its rollouts on the baseline."""
    for row in rows:
        if row.efficiency <= 1.15 + 1e-9:
            return row.group_size
    return rows[-1].group_size
