# ruff: noqa: E402  (optional packages are asked for first)
"""A real (tiny, random) language model end to end: sampled rollouts, hooked gradients, pool, brute force."""

from __future__ import annotations

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from tests.gradient import models

from viprl.gradient.consumers import SketchSum
from viprl.gradient.measure import GradientMeter
from viprl.gradient.moments import group_moments
from viprl.gradient.rollouts import PromptRollouts, log_probabilities
from viprl.gradient.sketch import DEFAULT_SIZE, CountSketch

PROMPT, LENGTH, END = [5, 6, 7], 3, 1


def draw(model, count: int, generator, prompt: list[int] = PROMPT) -> list[tuple[int, ...]]:
    """``count`` completions of up to three tokens at temperature 1, without transformers' generate."""
    ids = torch.tensor([prompt] * count)
    with torch.no_grad():
        for _ in range(LENGTH):
            pi = torch.softmax(model(input_ids=ids).logits[:, -1], -1)
            ids = torch.cat([ids, torch.multinomial(pi, 1, generator=generator)], 1)
    rows = ids[:, len(prompt) :].tolist()
    return [tuple(r[: r.index(END) + 1]) if END in r else tuple(r) for r in rows]


def reward(completion: tuple[int, ...]) -> float:
    return float(completion[0] % 3 == 0)


def drawn_variance(weights, index, gram) -> float:
    """Trace of the sample covariance of the estimates sum_j weights[m, j] H[index[m, j]], m = 1..M."""
    squares = torch.einsum("mi,mj,mij->m", weights, weights, gram[index[:, :, None], index[:, None, :]])
    mean = torch.zeros(len(gram), dtype=gram.dtype).scatter_add_(0, index.flatten(), weights.flatten()) / len(weights)
    return float((squares.mean() - mean @ gram @ mean) * len(weights) / (len(weights) - 1))


@pytest.mark.slow
@pytest.mark.parametrize("sketch_size", [None, DEFAULT_SIZE])
def test_one_pool_predicts_brute_force(sketch_size) -> None:
    """Variance of Dr. GRPO and RLOO at n = 2, 4, 8, from 96 rollouts and by 3,000 redraws."""
    model = models.llama(vocabulary=12)
    generator = torch.Generator().manual_seed(0)
    crowd = draw(model, 24_000, generator)
    unique = list(dict.fromkeys(crowd))
    where = {c: i for i, c in enumerate(unique)}
    exact = (
        GradientMeter(model, sketch_size=None, batch_rows=256).gradients(PROMPT, [list(c) for c in unique])[0].double()
    )
    exact_gram = exact @ exact.T
    index = torch.tensor([where[c] for c in crowd])
    rewards = torch.tensor([reward(c) for c in crowd], dtype=torch.float64)

    pool_completions = draw(model, 96, generator)
    own = list(dict.fromkeys(pool_completions))
    rollouts = PromptRollouts(
        PROMPT, [list(c) for c in own], [own.index(c) for c in pool_completions], [reward(c) for c in pool_completions]
    )
    pool = GradientMeter(model, sketch_size=sketch_size).pool("q", rollouts)
    moments = group_moments(pool.rewards, pool.gram)
    sizes, brute = np.array([2, 4, 8]), {}
    for estimator in ("rloo", "dr_grpo"):
        for n in sizes:
            r = rewards.view(-1, n)
            a = r - r.mean(1, keepdim=True)
            a = a * n / (n - 1) if estimator == "rloo" else a
            brute[estimator, n] = drawn_variance(a / n, index.view(-1, n), exact_gram)
        error = moments.standard_error(sizes, estimator)
        for n, value, e in zip(sizes, moments.variance(sizes, estimator), error, strict=True):
            assert abs(value - brute[estimator, n]) < 2.5 * e, (estimator, n, value, brute[estimator, n], e)
            assert e < 0.4 * value


@pytest.mark.slow
@pytest.mark.parametrize("estimator", ["rloo", "dr_grpo"])
def test_pools_predict_an_unequal_batch(estimator: str) -> None:
    """Three prompts with groups of 2, 4 and 8: the batch gradient (mean over prompts) drawn 4,000 times, against three
    pools of 200 rollouts."""
    model, generator = models.llama(vocabulary=12), torch.Generator().manual_seed(1)
    meter = GradientMeter(model, sketch_size=None, batch_rows=256)
    batches, promised, error = 4000, 0.0, 0.0
    gradients, weights, rows = [], [], []
    for prompt, n in zip(([5, 6, 7], [8, 9, 4], [10, 3, 2]), (2, 4, 8), strict=True):
        completions = draw(model, batches * n, generator, prompt)
        unique = list(dict.fromkeys(completions))
        where = {c: i for i, c in enumerate(unique)}
        rewards = torch.tensor([reward(c) for c in completions], dtype=torch.float64).view(batches, n)
        advantages = rewards - rewards.mean(1, keepdim=True)
        advantages = advantages * n / (n - 1) if estimator == "rloo" else advantages
        weights.append(advantages / n / 3)
        rows.append(torch.tensor([where[c] for c in completions]).view(batches, n) + sum(map(len, gradients)))
        gradients.append(meter.gradients(prompt, [list(c) for c in unique])[0].double())

        drawn = draw(model, 200, generator, prompt)
        own = list(dict.fromkeys(drawn))
        pool = meter.pool(
            "q",
            PromptRollouts(prompt, [list(c) for c in own], [own.index(c) for c in drawn], [reward(c) for c in drawn]),
        )
        moments = group_moments(pool.rewards, pool.gram)
        promised += float(moments.variance(np.array([n]), estimator)[0]) / 9
        error += float(moments.standard_error(np.array([n]), estimator)[0]) ** 2 / 81
    every = torch.cat(gradients)
    brute = drawn_variance(torch.cat(weights, 1), torch.cat(rows, 1), every @ every.T)
    assert abs(promised - brute) < 2.5 * error**0.5, (promised, brute, error**0.5)
    assert error**0.5 < 0.2 * promised


def test_sketch_error_on_real_gradients() -> None:
    """At the default size below one percent of the norms, root mean square, on a model of 0.8 million parameters."""
    from viprl.tasks.tiny_model import build_tiny_llama, build_tokenizer

    model = build_tiny_llama(build_tokenizer(), seed=1).eval()
    completions = [[3 + (7 * i + 3 * t) % 10 for t in range(2 + i % 3)] + [1] for i in range(12)]
    exact = GradientMeter(model, sketch_size=None, batch_rows=12).gradients([4, 5, 6, 13], completions)[0].double()
    true = exact @ exact.T
    scale = torch.outer(exact.norm(dim=1), exact.norm(dim=1))
    errors = {}
    for size in (4096, DEFAULT_SIZE):
        relative = []
        for seed in range(3):
            sketched = GradientMeter(model, sketch_size=size, seed=seed, batch_rows=5).gradients(
                [4, 5, 6, 13], completions
            )[0]
            sketched = sketched.double()
            relative.append((sketched @ sketched.T - true) / scale)
        errors[size] = float(torch.stack(relative).square().mean().sqrt())
    assert errors[DEFAULT_SIZE] < 0.01
    assert errors[DEFAULT_SIZE] < CountSketch({"w": (1,)}, size=DEFAULT_SIZE).error_bound
    assert errors[4096] > 1.5 * errors[DEFAULT_SIZE]


def test_meter_leaves_the_model_as_it_was() -> None:
    model = models.llama()
    for name, parameter in model.named_parameters():
        parameter.requires_grad_("norm" not in name)
    before = {n: (p.requires_grad, p.detach().clone()) for n, p in model.named_parameters()}
    meter = GradientMeter(model, sketch_size=None)
    meter.gradients(PROMPT, [[4, 5], [6]])
    for name, parameter in model.named_parameters():
        assert parameter.grad is None and parameter.requires_grad == before[name][0]
        assert torch.equal(parameter, before[name][1])
    assert isinstance(GradientMeter(model)._consumer, SketchSum)


def test_gradients_come_back_in_order() -> None:
    model = models.llama()
    completions = [[5, 6, 7], [8], [9, 10, 11, 12], [4, 1]]
    found, cheap = GradientMeter(model, sketch_size=None, batch_rows=3).gradients(PROMPT, completions)
    names = [n for n, _ in model.named_parameters()]
    for i, completion in enumerate(completions):
        value = log_probabilities(model, PROMPT, [completion])[0].sum()
        grads = dict(zip(names, torch.autograd.grad(value, list(model.parameters())), strict=True))
        expected = torch.cat([g.flatten() for g in grads.values()])
        assert found[i].norm() == pytest.approx(float(expected.norm()), rel=1e-4)
        assert float(cheap["length"][i]) == len(completion)
        assert float(cheap["surprisal"][i]) == pytest.approx(-value.item(), rel=1e-4)
