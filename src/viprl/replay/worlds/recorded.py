"""Protocol A: a recorded run, replayed with full information. Protocol D: resampled from many recorded rollouts.

In A the predictor sees every recorded rollout, whatever the rule decided: what would be known had the run been
recorded only. In D it sees only as many rollouts as the rule's group got, drawn without replacement from the visit.

Scoring goes by a_hat = k (n - k) / (n (n - 1)) of the visit that is being decided about, which is unbiased for
p (1 - p) and independent of a decision made before the rollouts. A rule that looks at rollouts *inside* the step is
scored by the rollouts of the visit that it has not looked at; so at least two of every visit are kept from it.

Where the rewards are more than successes a_hat is the recorded variance of the visit's rewards, which is unbiased too;
no rule can then look inside the step, since the rewards one by one are not in a log.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from scipy.special import betaln

from viprl._arrays import BoolArray, FloatArray, IntArray
from viprl.errors import InvalidInputError
from viprl.replay.log import RewardKind, VisitLog, hindsight, hindsight_variance
from viprl.replay.worlds.base import Step

KEPT_FOR_SCORING = 2


class RecordedStep(Step):
    def __init__(
        self,
        world: RecordedLog,
        index: int,
        number: int,
        phase: str,
        visits: IntArray,
        rng: np.random.Generator,
        budget: int,
    ) -> None:
        super().__init__(number, phase, world.log.rows[visits], budget)
        self._world, self._index, self._visits, self._rng = world, index, visits, rng
        self._own = len(visits)

    @property
    def _n(self) -> IntArray:
        return self._world.log.rollouts[self._visits]

    @property
    def _k(self) -> FloatArray:
        return self._world.log.successes[self._visits]

    def draw(self, positions: IntArray, count: int) -> None:
        left_n = self._n[positions] - self.drawn[positions]
        take = np.clip(left_n - KEPT_FOR_SCORING, 0, count)
        left_k = np.rint(self._k[positions] - self.hits[positions]).astype(np.int64)
        got = self._rng.hypergeometric(left_k, left_n - left_k, take)
        self.drawn[positions] += take
        self.hits[positions] += got if not self._world.in_outage(self.number) else 0

    def group_is_live(self, positions: IntArray, size: int) -> BoolArray:
        n, k = self._n[positions], np.rint(self._k[positions]).astype(np.int64)
        take = np.minimum(n, size)
        got = self._rng.hypergeometric(k, n - k, take)
        return (got > 0) & (got < take)

    def extend(self, count: int) -> IntArray:
        """The prompts that the log visits next."""
        log, before = self._world.log, len(self._visits)
        start = int(log.offsets[self._index + 1]) + before - self._own
        more = np.arange(start, min(start + count, len(log)))
        self._visits = np.concatenate([self._visits, more])
        self.rows = log.rows[self._visits]
        self.drawn = np.concatenate([self.drawn, np.zeros(len(more), np.int64)])
        self.hits = np.concatenate([self.hits, np.zeros(len(more))])
        return np.arange(before, len(self._visits))

    def learn(self, sizes: IntArray) -> tuple[FloatArray, IntArray]:
        n, k = self._n, self._k
        if self._world.resample:
            n = np.minimum(sizes, n)
            rest, kept = n - self.drawn, np.rint(k - self.hits).astype(np.int64)
            unseen = self._n - self.drawn - kept
            k = self.hits + self._rng.hypergeometric(kept, unseen, np.maximum(rest, 0))
        if self._world.in_outage(self.number):
            k = np.zeros(len(k))
        return k, n

    def learn_rewards(self, sizes: IntArray) -> tuple[FloatArray, FloatArray, IntArray]:
        log = self._world.log
        if log.means is None or log.variances is None:
            return super().learn_rewards(sizes)
        told = 0.0 if self._world.in_outage(self.number) else 1.0
        return told * log.means[self._visits], told * log.variances[self._visits], self._n

    @property
    def weight(self) -> FloatArray:
        if self._world.log.variances is not None:
            return self._world.log.variances[self._visits]
        n = (self._n - self.drawn).astype(np.float64)
        k = self._k - self.hits
        with np.errstate(divide="ignore", invalid="ignore"):
            return np.where(n >= 2, k * (n - k) / (n * (n - 1)), np.nan)

    @property
    def target(self) -> FloatArray:
        return self._world.rate[self._visits]

    @property
    def best_weight(self) -> FloatArray:
        if self._world.hindsight_variance is not None:
            return self._world.hindsight_variance[self._visits]
        a, b = self._world.hindsight[self._visits].T
        return np.asarray(a * b / ((a + b) * (a + b + 1)), dtype=np.float64)

    @property
    def bin_rate(self) -> FloatArray:
        if self._world.rewards == "real":
            return self.target
        a, b = self._belief()
        return a / (a + b)

    def live(self, sizes: FloatArray) -> FloatArray:
        """Under the Beta of all the prompt's visits with this one: groups larger than recorded need a model.

        A group of real rewards is live where the prompt's rewards ever differ.
        """
        if self._world.rewards == "real":
            return np.where((sizes >= 2) & (self.best_weight + self.weight > 0), 1.0, 0.0)
        a, b = self._belief()
        norm = betaln(a, b)
        alive = 1 - np.exp(betaln(a + sizes, b) - norm) - np.exp(betaln(a, b + sizes) - norm)
        return np.where(sizes >= 1, alive, 0.0)

    def _belief(self) -> tuple[FloatArray, FloatArray]:
        a, b = self._world.hindsight[self._visits].T
        return a + self._k, b + self._n - self._k


class RecordedLog:
    """Protocols A (``resample=False``) and D (``resample=True``).

    Args:
        log: the visits. Steps are reported as "first visits" while any of their prompts is met for the first time,
            then as "later".
        budget: rollouts of a step, per prompt; by default what the step really used.
        resample: protocol D. ``max_group_size`` must then not exceed the rollouts recorded for a visit.
        outage: (first step, length) in positions of the log: the predictor is told zero successes there. Scores go by
            what was really recorded.
    """

    best_name = "hindsight"

    def __init__(
        self,
        log: VisitLog,
        *,
        budget: float | None = None,
        resample: bool = False,
        outage: tuple[int, int] | None = None,
    ) -> None:
        if log.rollouts.min() < 2:
            raise InvalidInputError("every visit needs two rollouts to be scored; drop the visits with one")
        if outage is not None and not (0 <= outage[0] and outage[1] >= 1 and sum(outage) <= log.n_steps):
            raise InvalidInputError(
                f"an outage must lie within the log's {log.n_steps} steps, but got "
                f"(start={outage[0]}, length={outage[1]})"
            )
        if resample and log.variances is not None:
            raise InvalidInputError("resampling needs a log of successes alone, but its rewards are more than that")
        self.log, self.resample, self.budget, self.outage = log, resample, budget, outage
        self.prompt_ids, self.n_steps = log.prompt_ids, log.n_steps
        self.rewards: RewardKind = log.rewards
        self.hindsight = hindsight(log)
        self.hindsight_variance = None if log.variances is None else hindsight_variance(log)
        self.rate = log.successes / log.rollouts if log.means is None or self.rewards != "real" else _unit(log.means)
        numbers = log.step_numbers
        self._outage_numbers = (np.inf, -np.inf) if outage is None else (numbers[outage[0]], numbers[sum(outage) - 1])

    def in_outage(self, number: int) -> bool:
        """True where the recorded step lies inside the staged outage."""
        return bool(self._outage_numbers[0] <= number <= self._outage_numbers[1])

    def run(self, seed: int) -> Iterator[Step]:
        """The recorded steps, in order."""
        rng = np.random.default_rng(seed)
        log = self.log
        seen = np.zeros(len(log.prompt_ids), bool)
        for index, visits in enumerate(log.steps()):
            rows = log.rows[visits]
            used = int(log.rollouts[visits].sum())
            budget = used if self.budget is None else round(self.budget * len(rows))
            phase = "later" if seen[rows].all() else "first visits"
            number = int(log.step_numbers[index])
            yield RecordedStep(self, index, number, phase, np.arange(visits.start, visits.stop), rng, budget)
            seen[rows] = True

    def describe(self) -> dict[str, object]:
        """What the report says of the protocol."""
        return {
            "protocol": "resample" if self.resample else "log",
            "prompts": len(self.prompt_ids),
            "steps": self.n_steps,
            "visits": len(self.log),
            "rollouts": int(self.log.rollouts.sum()),
            "mean_group_size": self.log.mean_group_size if self.budget is None else float(self.budget),
            "outage": None if self.outage is None else list(self.outage),
            "rewards": self.rewards,
        }


def _unit(means: FloatArray) -> FloatArray:
    """Mean rewards mapped to [0, 1], the range of the log: what "success rate" stands for in the pictures."""
    low, high = float(means.min()), float(means.max())
    return (means - low) / (high - low) if high > low else np.full(len(means), 0.5)
