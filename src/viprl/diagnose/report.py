"""Is the paper's formula safe for this model and task? Tests, effect sizes, the measured answer, a verdict in words.

Every comparison of predictions with truth is cross-fitted: each prompt's rollouts are split in two, group sizes come
from one half, the truth from the other, and the two ways round are averaged.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from viprl._arrays import FloatArray
from viprl.allocation import Uniform
from viprl.diagnose import hypotheses
from viprl.diagnose.hypotheses import TestResult
from viprl.errors import InvalidInputError
from viprl.gradient.comparison import KnownMoments, oracle_sizes, pool_constants, ratio_and_error
from viprl.gradient.learned import learn_from_pools, posterior
from viprl.gradient.moments import variance_curve
from viprl.gradient.pool import PromptPool
from viprl.prediction.base import Prediction

MIN_ROLLOUTS = 12
MIN_PROMPTS = 5


@dataclass(frozen=True)
class Ratio:
    """A cross-fitted measured variance ratio to uniform, its standard error over prompts and 95 % interval."""

    value: float
    standard_error: float

    @property
    def low(self) -> float:
        """Lower end of the 95 % interval."""
        return self.value - 1.96 * self.standard_error

    @property
    def high(self) -> float:
        """Upper end of the 95 % interval."""
        return self.value + 1.96 * self.standard_error


@dataclass(frozen=True)
class AssumptionReport:
    """What was found.

    Attributes:
        prompts, rollouts: prompts with both outcomes, and rollouts of each (mean).
        tests: name -> TestResult.
        mean_correlation: mean Pearson correlation of R and Z over prompts; negative: failures have larger gradients.
        correlation_by_difficulty: the same for prompts with p below 1/3, between, and above 2/3 (NaN where none).
        outcome_ratio: geometric mean of s+ / s- in the same three classes.
        variance_spread: 90th over 10th percentile of Var(Z) over prompts.
        formula_fit: correlation over prompts of log measured V1 with log p(1-p), the formula's claim.
        ratios: cross-fitted measured ratios: "formula" (posterior mean of p(1-p)), "unequal sigma" (that times the
            prompt's mean ||H||^2), "by outcome" (each prompt's own second moments), "proxy ..." (the same from a
            proxy), "learned" (``OutcomeMoments``) and "own variance" (each prompt's own V1, V2: what knowing the
            past half alone is worth, over-confident where that half holds few successes or failures).
        proxy_correlation: proxy -> correlation of its logarithm with log ||H||^2 over rollouts within prompts.
        verdict: "helps", "harms" or "unclear".
    """

    prompts: int
    rollouts: float
    tests: dict[str, TestResult]
    mean_correlation: float
    correlation_by_difficulty: tuple[float, float, float]
    outcome_ratio: tuple[float, float, float]
    variance_spread: float
    formula_fit: float
    ratios: dict[str, Ratio]
    proxy_correlation: dict[str, float]
    verdict: str
    text: str = field(default="")


def diagnose(
    pools: Sequence[PromptPool],
    *,
    aggregation: str = "sum",
    estimator: str = "rloo",
    mean_group_size: int = 8,
    min_group_size: int = 3,
    max_group_size: int = 32,
    seed: int = 0,
) -> AssumptionReport:
    """Test the assumptions on pools of rollouts (``viprl.gradient.measure``).

    Raises:
        InvalidInputError: fewer than five prompts with both outcomes and at least twelve rollouts.
    """
    usable = [p for p in pools if p.mixed and len(p.rewards) >= MIN_ROLLOUTS]
    if len(usable) < MIN_PROMPTS:
        raise InvalidInputError(
            f"at least {MIN_PROMPTS} prompts with both outcomes and {MIN_ROLLOUTS} rollouts are needed, but got "
            f"{len(usable)} of {len(pools)}"
        )
    rewards = [p.rewards for p in usable]
    norms = [p.norms(aggregation) for p in usable]
    _, p_values = hypotheses.pearson(rewards, norms)
    tests = {
        "fisher": hypotheses.fisher(p_values),
        "edgington": hypotheses.edgington(p_values),
        "levene": hypotheses.levene(norms),
        "obrien": hypotheses.obrien(norms),
    }
    rate = np.array([p.mean_reward for p in usable])
    outcomes = [p.outcomes(aggregation) for p in usable]
    log_ratio = np.log([max(o.s_plus, 1e-300) / max(o.s_minus, 1e-300) for o in outcomes])
    correlation = np.array([o.correlation for o in outcomes])
    v1, _ = pool_constants(usable, aggregation)
    fit = v1 > 0
    ratios = _ratios(usable, aggregation, estimator, (mean_group_size, min_group_size, max_group_size), seed)
    report = AssumptionReport(
        prompts=len(usable),
        rollouts=float(np.mean([len(x) for x in rewards])),
        tests=tests,
        mean_correlation=float(np.nanmean(correlation)),
        correlation_by_difficulty=_by_class(rate, correlation),
        outcome_ratio=tuple(float(np.exp(x)) for x in _by_class(rate, log_ratio)),  # type: ignore[arg-type]
        variance_spread=hypotheses.variance_ratio(norms),
        formula_fit=float(np.corrcoef(np.log(v1[fit]), np.log((rate * (1 - rate))[fit]))[0, 1]),
        ratios=ratios,
        proxy_correlation=_proxy_correlation(usable, aggregation),
        verdict=_verdict(ratios["formula"]),
    )
    return AssumptionReport(**{**vars(report), "text": explain(report)})


def _by_class(rate: FloatArray, values: FloatArray) -> tuple[float, float, float]:
    classes = (rate < 1 / 3, (rate >= 1 / 3) & (rate <= 2 / 3), rate > 2 / 3)
    means = [float(np.nanmean(values[c])) if np.isfinite(values[c]).any() else float("nan") for c in classes]
    return means[0], means[1], means[2]


def _ratios(
    pools: Sequence[PromptPool], aggregation: str, estimator: str, bounds: tuple[int, int, int], seed: int
) -> dict[str, Ratio]:
    mean, low, high = bounds
    halves = [p.split(seed=seed + q) for q, p in enumerate(pools)]
    budget = mean * len(pools)
    options = {"budget": budget, "min_group_size": low, "max_group_size": high}
    names: dict[str, list[tuple[FloatArray, FloatArray]]] = {}
    for past, future in ((0, 1), (1, 0)):
        seen, fresh = [h[past] for h in halves], [h[future] for h in halves]
        v1, v2 = pool_constants(fresh, aggregation)
        p = np.array([x.rewards.mean() for x in seen])
        point = Prediction.point(p)
        uniform = Uniform().allocate(point, model=KnownMoments(p, p, estimator), **options)
        reference = variance_curve(v1, v2, uniform, estimator)
        constants = {name: (w, w) for name, w in _weights(seen, aggregation).items()}
        model = learn_from_pools(seen, aggregation=aggregation, estimator=estimator)
        constants["learned"] = model.constants(posterior(seen), [p.prompt_id for p in seen])
        constants["own variance"] = pool_constants(seen, aggregation)
        for name, own in constants.items():
            sizes = oracle_sizes(*own, budget, low, high, estimator)
            names.setdefault(name, []).append((variance_curve(v1, v2, sizes, estimator), reference))
    found = {}
    for name, pairs in names.items():
        numerator, denominator = (sum(x[i] for x in pairs) for i in (0, 1))
        found[name] = Ratio(*ratio_and_error(np.asarray(numerator), np.asarray(denominator)))
    return found


def _weights(pools: Sequence[PromptPool], aggregation: str) -> dict[str, FloatArray]:
    """Predicted V1, each (B,), from past rollouts by each rule."""

    def by_outcome(value: Callable[[PromptPool], FloatArray]) -> FloatArray:
        result = []
        for pool in pools:
            r, p = pool.rewards, _shrunk_rate(pool.rewards)
            squares = value(pool)
            plus = squares[r == 1].mean() if (r == 1).any() else squares.mean()
            minus = squares[r == 0].mean() if (r == 0).any() else squares.mean()
            result.append(p * (1 - p) ** 2 * plus + p**2 * (1 - p) * minus)
        return np.array(result)

    spread = posterior(pools).bernoulli_variance
    found = {
        "formula": spread,
        "unequal sigma": spread * np.array([(p.norms(aggregation) ** 2).mean() for p in pools]),
        "by outcome": by_outcome(lambda p: p.norms(aggregation) ** 2),
    }
    for name in pools[0].proxies:

        def squares(p: PromptPool, name: str = name) -> FloatArray:
            value = np.asarray(p.proxies[name])
            return value if aggregation == "sum" else value / p.lengths**2

        found[f"proxy {name}"] = by_outcome(squares)
    return found


def _shrunk_rate(rewards: FloatArray) -> float:
    """Posterior mean of p under Jeffreys' prior, so that no group size rests on p(1-p) = 0."""
    return float((rewards.sum() + 0.5) / (len(rewards) + 1))


def _proxy_correlation(pools: Sequence[PromptPool], aggregation: str) -> dict[str, float]:
    found = {}
    for name in pools[0].proxies:
        x, y = [], []
        for pool in pools:
            value = np.asarray(pool.proxies[name]) / (1 if aggregation == "sum" else pool.lengths**2)
            a, b = np.log(np.maximum(value, 1e-12)), np.log(np.maximum(pool.norms(aggregation) ** 2, 1e-300))
            x.append(a - a.mean())
            y.append(b - b.mean())
        both = np.concatenate(x), np.concatenate(y)
        varied = np.ptp(both[0]) > 0 and np.ptp(both[1]) > 0
        found[name] = float(np.corrcoef(*both)[0, 1]) if varied else float("nan")
    return found


def _verdict(ratio: Ratio) -> str:
    if ratio.high < 1:
        return "helps"
    return "harms" if ratio.low > 1 else "unclear"


def _p(value: float) -> str:
    """A p-value in words; what underflows is not zero."""
    return f"= {value:.2g}" if value > 1e-300 else "< 1e-300"


def _known(ratio: float) -> str:
    return "unknown (no such prompts)" if np.isnan(ratio) else f"{ratio:.2g}"


def explain(report: AssumptionReport) -> str:
    """The report in plain words."""
    tests = report.tests
    formula, learned = report.ratios["formula"], report.ratios["learned"]
    correlated = min(tests["fisher"].p_value, tests["edgington"].p_value) < 0.05
    unequal = min(tests["levene"].p_value, tests["obrien"].p_value) < 0.05
    low, _, high = report.outcome_ratio
    lines = [
        f"{report.prompts} prompts with both outcomes, {report.rollouts:.0f} rollouts each.",
        f"Rewards and gradient norms are {'correlated' if correlated else 'not detectably correlated'} "
        f"(Fisher p {_p(tests['fisher'].p_value)}, Edgington p {_p(tests['edgington'].p_value)}; mean correlation "
        f"{report.mean_correlation:+.2f}). A success's squared gradient relative to a failure's: {_known(low)} "
        f"where success is rare, {_known(high)} where it is common.",
        f"Gradient noise {'differs' if unequal else 'does not detectably differ'} between prompts (Levene "
        f"p {_p(tests['levene'].p_value)}, O'Brien p {_p(tests['obrien'].p_value)}; 90th to 10th percentile of the "
        f"variances {report.variance_spread:.1f}).",
        f"What counts: allocating by p(1-p) gives {formula.value:.3f} of uniform's variance (95 % interval "
        f"{formula.low:.3f} to {formula.high:.3f}), learned variances {learned.value:.3f} ({learned.low:.3f} to "
        f"{learned.high:.3f}).",
    ]
    lines.append(
        {
            "helps": "The formula is safe here: it lowers the variance although its assumptions need not hold exactly.",
            "harms": "The formula is NOT safe here: it raises the variance. Use variance='learned' or uniform groups.",
            "unclear": "No gain or loss can be shown with these rollouts. Measure more prompts, or use "
            "variance='learned', which falls back by itself.",
        }[report.verdict]
    )
    return "\n".join(lines)
