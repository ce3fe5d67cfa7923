"""The arena's policies: each spends rollouts of a world, learns from them and trains on what it keeps.

A cell's name says it all: ``RULE`` or ``RULE-BxG`` with B prompts of G rollouts each (32x8 by default). RULE is

    uniform          every prompt in turn
    vip              the same, the budget divided inside the batch by viprl.RLOO and viprl.VIP
    top4             of 4 B candidates the B with the largest E[p(1-p)]
    draw4, draw4^2   of 4 B candidates B drawn without replacement in proportion to E[p(1-p)] (to a power)
    keep20           through the data in order, a prompt is kept with probability min(1, E[p(1-p)] / .20)
    sat4:R           as draw4, in proportion to the saturating value of G rollouts with between-prompt noise R
    default4         what users get: viprl.build_allocator with candidates=4, its select and observe
    defaulttop4, defaultunbiased4, defaultflat4, defaultfree4      the same with another selection, with uniform groups,
                     without the guard
    soft4^2:R        only viprl's selection (learnability, sharpness 2 where the default is 4, rho = R); it divides the
                     budget too; best4:R is the same with the top policy
    mopps, greso, dapo, sfl, speed, adarft      the published rules, every rollout that they generate counted
"""

from __future__ import annotations

import random
import re
from types import SimpleNamespace
from typing import Any

import numpy as np
from world import Group, World

import viprl
from viprl import selection
from viprl.replay.rules import GRESO, MoPPS
from viprl.selection import SaturatingValue

DEFAULTS: dict[str, dict[str, Any]] = {
    "default": {},
    "defaulttop": {"selection": "top"},
    "defaultunbiased": {"selection": "unbiased"},
    "defaultflat": {"policy": "uniform"},
    "defaultfree": {"guard": False},
}


class Stream:
    """Prompts in shuffled passes."""

    def __init__(self, prompts: list[str], seed: int) -> None:
        self._prompts, self._random, self._order = prompts, random.Random(f"stream/{seed}"), []

    def take(self, count: int) -> list[str]:
        while len(self._order) < count:
            self._order += self._random.sample(self._prompts, len(self._prompts))
        taken, self._order = self._order[:count], self._order[count:]
        return list(dict.fromkeys(taken))


class Rule:
    """Subclasses implement ``step``: generate, learn, train once."""

    def __init__(self, world: World, prompts: int, size: int) -> None:
        self.world, self.prompts, self.size = world, prompts, size
        self.stream = Stream(world.pool.prompts, world.seed)
        self.noise = np.random.default_rng([world.seed, 11])

    def step(self) -> list[Group]:
        raise NotImplementedError


class Uniform(Rule):
    def step(self) -> list[Group]:
        ids = self.stream.take(self.prompts)
        groups = self.world.roll(ids, np.full(len(ids), self.size))
        self.world.train(groups)
        return groups


class Predictive(Rule):
    """Decides by ``viprl.CalibratedPredictor``; ``choose`` gives ids and sizes."""

    def __init__(self, world: World, prompts: int, size: int) -> None:
        super().__init__(world, prompts, size)
        texts = world.pool.prompts
        self.predictor = viprl.CalibratedPredictor(None, prompt_ids=texts, texts=texts)

    def choose(self) -> tuple[list[str], np.ndarray]:
        raise NotImplementedError

    def step(self) -> list[Group]:
        ids, sizes = self.choose()
        groups = self.world.roll(ids, sizes)
        self.world.train(groups)
        self.predictor.observe(ids, [g.rewards.sum() for g in groups], [len(g.rewards) for g in groups])
        return groups


class Vip(Predictive):
    def choose(self) -> tuple[list[str], np.ndarray]:
        ids = self.stream.take(self.prompts)
        sizes = viprl.solve_allocation(viprl.RLOO(), self.predictor.predict(ids), len(ids) * self.size, 3, 32)
        return ids, sizes


class Scored(Predictive):
    """B of k B candidates with the largest log score, plus Gumbel noise where the choice is a draw."""

    def __init__(self, world: World, prompts: int, size: int, *, multiple: int, power: float, noise: float) -> None:
        super().__init__(world, prompts, size)
        self.multiple, self.power, self.gumbel = multiple, power, noise

    def score(self, prediction: viprl.Prediction) -> np.ndarray:
        return np.asarray(prediction.bernoulli_variance)

    def choose(self) -> tuple[list[str], np.ndarray]:
        seen = self.stream.take(min(self.multiple * self.prompts, len(self.world.pool.prompts)))
        keys = self.power * np.log(self.score(self.predictor.predict(seen)) + 1e-6)
        keys = keys + self.gumbel * self.noise.gumbel(size=len(keys))
        chosen = np.sort(np.argsort(-keys, kind="stable")[: self.prompts])
        return [seen[i] for i in chosen], np.full(len(chosen), self.size)


class Saturating(Scored):
    """Drawn in proportion to the value of G rollouts under between-prompt noise."""

    between = 1.0

    def score(self, prediction: viprl.Prediction) -> np.ndarray:
        square = prediction.expect(lambda p: np.square(p * (1 - p)))
        return SaturatingValue.of(prediction.bernoulli_variance, square, self.between).at(self.size)


class Select(Predictive):
    """viprl's own selection; the number of prompts and their group sizes are its choice."""

    def __init__(self, world: World, prompts: int, size: int, *, multiple: int, policy: Any, between: float) -> None:
        super().__init__(world, prompts, size)
        self.multiple, self.policy, self.between = multiple, policy, between
        self.coverage = selection.Coverage()

    def choose(self) -> tuple[list[str], np.ndarray]:
        seen = self.stream.take(min(self.multiple * self.prompts, len(self.world.pool.prompts)))
        prediction = self.predictor.predict(seen)
        square = prediction.expect(lambda p: np.square(p * (1 - p)))
        value = SaturatingValue.of(prediction.bernoulli_variance, square, self.between)
        waited = self.coverage.waited(seen)
        candidates = selection.Candidates(value, self.prompts * self.size, 3, 32, self.prompts, waited)
        policy = selection.UniformSelection() if self.coverage.narrow else self.policy
        sizes = policy.select(candidates, np.random.default_rng([self.world.seed, self.world.updates])).sizes
        self.coverage.learn(seen, (sizes > 0).tolist())
        kept = np.flatnonzero(sizes)
        return [seen[i] for i in kept], sizes[kept]


class Product(Rule):
    """The front door: what ``viprl.build_allocator`` makes from settings decides."""

    def __init__(self, world: World, prompts: int, size: int, **settings: Any) -> None:
        super().__init__(world, prompts, size)
        texts = world.pool.prompts
        estimator = "grpo" if world.objective == "grpo" else "rloo"
        self.settings = viprl.AllocationSettings(estimator=estimator, max_group_size=4 * size, **settings)
        self.allocator = viprl.build_allocator(viprl.PromptSet(texts, texts=texts), self.settings)

    def step(self) -> list[Group]:
        wanted = min(self.settings.candidates * self.prompts, len(self.world.pool.prompts))
        plan = self.allocator.select(self.stream.take(wanted), self.prompts * self.size)
        groups = self.world.roll(list(plan.prompt_ids), plan.group_sizes)
        for group, weight in zip(groups, plan.prompt_weights.tolist(), strict=True):
            group.weight = weight
        self.world.train(groups)
        self.allocator.observe(plan, [g.rewards for g in groups])
        return groups


class Keep(Predictive):
    def __init__(self, world: World, prompts: int, size: int, *, threshold: float) -> None:
        super().__init__(world, prompts, size)
        self.threshold = threshold

    def choose(self) -> tuple[list[str], np.ndarray]:
        kept: list[str] = []
        for _ in range(8):
            seen = [p for p in self.stream.take(self.prompts) if p not in kept]
            chance = np.minimum(1, np.asarray(self.predictor.predict(seen).bernoulli_variance) / self.threshold)
            kept += [p for p, ok in zip(seen, self.noise.random(len(seen)) < chance, strict=True) if ok]
            if len(kept) >= self.prompts:
                break
        kept = kept[: self.prompts] or seen[:1]
        return kept, np.full(len(kept), self.size)


class Replayed(Rule):
    """A rule of ``viprl.replay``: it divides the budget over the candidates that it keeps."""

    def __init__(self, world: World, prompts: int, size: int, *, rule: Any, candidates: int) -> None:
        super().__init__(world, prompts, size)
        self.rule, self.candidates = rule, candidates
        self.setting = SimpleNamespace(min_group_size=3, max_group_size=size)

    def step(self) -> list[Group]:
        kept: list[str] = []
        for _ in range(8):
            seen = [p for p in self.stream.take(self.candidates) if p not in kept]
            step = _Step(self.prompts * self.size, len(seen))
            sizes = self.rule.decide(step, seen, None, self.setting)
            kept += [p for p, n in zip(seen, sizes.tolist(), strict=True) if n]
            if len(kept) >= self.prompts:
                break
        kept = kept[: self.prompts]
        groups = self.world.roll(kept, np.full(len(kept), self.size))
        self.world.train(groups)
        self.rule.learn(kept, np.array([g.rewards.sum() for g in groups]), np.array([len(g.rewards) for g in groups]))
        return groups


class _Step:
    def __init__(self, budget: int, count: int) -> None:
        self.budget, self._count = budget, count

    def __len__(self) -> int:
        return self._count


class Dapo(Rule):
    """DAPO's dynamic sampling (arXiv 2503.14476): groups are generated until B live ones are there, at most 10 B."""

    def step(self) -> list[Group]:
        live: list[Group] = []
        for _ in range(10):
            ids = self.stream.take(self.prompts)
            live += [g for g in self.world.roll(ids, np.full(len(ids), self.size)) if g.live]
            if len(live) >= self.prompts:
                break
        live = live[: self.prompts]
        self.world.train(live)
        return live


class Sfl(Rule):
    """SFL (arXiv 2502.12272): every ``period`` updates ``probed`` prompts get G rollouts each; the ``pool`` with the
    largest k(n-k) give half of each batch until the next time, the whole data set the other half."""

    period, probed, pool, share = 10, 128, 64, 0.5

    def __init__(self, world: World, prompts: int, size: int) -> None:
        super().__init__(world, prompts, size)
        self._random, self._best = random.Random(f"sfl/{world.seed}"), []

    def step(self) -> list[Group]:
        if self.world.updates % self.period == 0:
            ids = self.stream.take(self.probed)
            rates = np.array([g.rewards.mean() for g in self.world.roll(ids, np.full(len(ids), self.size))])
            order = np.argsort(-rates * (1 - rates), kind="stable")[: self.pool]
            self._best = [ids[i] for i in order]
        ids = self._random.sample(self._best, int(self.prompts * self.share))
        ids += [p for p in self.stream.take(2 * self.prompts) if p not in ids][: self.prompts - len(ids)]
        groups = self.world.roll(ids, np.full(len(ids), self.size))
        self.world.train(groups)
        return groups


class Speed(Rule):
    """SPEED (arXiv 2506.09016): G/2 screening rollouts each; prompts with both outcomes get G/2 more and are trained.

    Screening goes on until B prompts qualify, at most 10 rounds.
    """

    def step(self) -> list[Group]:
        half, qualified = self.size // 2, []
        for _ in range(10):
            ids = self.stream.take(self.prompts)
            qualified += [g for g in self.world.roll(ids, np.full(len(ids), half)) if g.live]
            if len(qualified) >= self.prompts:
                break
        qualified = qualified[: self.prompts]
        if not qualified:
            return []
        more = self.world.roll([g.prompt for g in qualified], np.full(len(qualified), self.size - half))
        joined = [a.joined(b) for a, b in zip(qualified, more, strict=True)]
        self.world.train(joined)
        return joined


class AdaRft(Rule):
    """AdaRFT (arXiv 2504.05520): the B prompts nearest a target difficulty, which follows the mean reward.

    Difficulty (0 to 100) is given by labels: the failure rate at the start of training. T += 50 tanh(2 (R - .5)), as in
    the paper, from T = 0; candidates are the whole data set, ties at random.
    """

    target, step_size, sensitivity, wanted = 0.0, 50.0, 2.0, 0.5

    def step(self) -> list[Group]:
        difficulty = 100 * self.world.pool.difficulty
        jitter = self.noise.random(len(difficulty))
        nearest = np.lexsort((jitter, np.abs(difficulty - self.target)))[: self.prompts]
        ids = [self.world.pool.prompts[i] for i in nearest]
        groups = self.world.roll(ids, np.full(len(ids), self.size))
        self.world.train(groups)
        mean = float(np.mean([g.rewards.mean() for g in groups]))
        self.target = float(
            np.clip(self.target + self.step_size * np.tanh(self.sensitivity * (mean - self.wanted)), 0, 100)
        )
        return groups


def build(name: str, world: World) -> Rule:
    """The rule of a cell's name."""
    matched = re.fullmatch(r"([a-z]+)(\d*)(?:\^([\d.]+))?(?::([\d.]+))?(?:-(\d+)x(\d+))?", name)
    if matched is None:
        raise SystemExit(f"unknown cell {name!r}")
    rule, number, power, noise, prompts, size = matched.groups()
    shape = (world, int(prompts or 32), int(size or 8))
    if rule == "top":
        return Scored(*shape, multiple=int(number), power=1.0, noise=0.0)
    if rule == "draw":
        return Scored(*shape, multiple=int(number), power=float(power or 1), noise=1.0)
    if rule == "sat":
        built = Saturating(*shape, multiple=int(number), power=float(power or 1), noise=1.0)
        built.between = float(noise or 1)
        return built
    if rule in ("soft", "best"):
        chosen = selection.Top() if rule == "best" else selection.Learnability(sharpness=float(power or 4))
        return Select(*shape, multiple=int(number), policy=chosen, between=float(noise or 1))
    if rule.startswith("default"):
        return Product(*shape, candidates=int(number or 4), **DEFAULTS[rule])
    if rule == "keep":
        return Keep(*shape, threshold=int(number) / 100)
    if rule == "mopps":
        return Replayed(*shape, rule=MoPPS(world.seed, share=0.25), candidates=4 * shape[1])
    if rule == "greso":
        return Replayed(*shape, rule=GRESO(world.seed), candidates=shape[1])
    simple = {"uniform": Uniform, "vip": Vip, "dapo": Dapo, "sfl": Sfl, "speed": Speed, "adarft": AdaRft}
    return simple[rule](*shape)
