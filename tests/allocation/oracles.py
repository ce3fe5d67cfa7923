"""Independent, slow solvers that the tests trust: enumeration, a plain dynamic programme, a heap."""

from __future__ import annotations

import heapq

import numpy as np


def curve_table(model, prediction, largest, scale=None):
    """(B, largest + 1) variances with column n for size n; column 0 unused."""
    values = model.curve(prediction, np.arange(1, largest + 1))
    values = values if scale is None else values * np.asarray(scale)[:, None]
    return np.concatenate([np.full((len(values), 1), np.nan), values], axis=1)


def enumerate_all(table, budget, lower, upper, cost=None):
    """Smallest objective over all feasible sizes."""
    ranges = [np.arange(a, b + 1) for a, b in zip(lower, upper, strict=True)]
    grids = np.stack(np.meshgrid(*ranges, indexing="ij"), axis=-1).reshape(-1, len(ranges))
    spent = grids.sum(axis=1) if cost is None else grids @ np.asarray(cost)
    feasible = grids[spent == budget] if cost is None else grids[spent <= budget]
    return float(table[np.arange(len(lower))[None, :], feasible].sum(axis=1).min())


def full_table(table, budget, lower, upper, cost=None):
    """Smallest objective by a dynamic programme over every spending 0..budget."""
    cost = np.ones(len(lower), int) if cost is None else cost
    best = np.full(budget + 1, np.inf)
    best[0] = 0.0
    for q, (low, high) in enumerate(zip(lower, upper, strict=True)):
        fresh = np.full(budget + 1, np.inf)
        for n in range(low, high + 1):
            spend = int(cost[q]) * n
            if spend <= budget:
                fresh[spend:] = np.minimum(fresh[spend:], best[: budget + 1 - spend] + table[q, n])
        best = fresh
    return best


def greedy_heap(weight, gain, budget, lower, upper):
    """One rollout at a time to the largest gain, ties to the earlier prompt; useless rollouts are not defined."""
    sizes = np.array(lower, dtype=np.int64)
    table = np.asarray(gain(np.arange(1, int(np.max(upper)) + 1)))
    heap = [(-weight[q] * table[sizes[q] - 1], q) for q in range(len(sizes)) if sizes[q] < upper[q]]
    heapq.heapify(heap)
    for _ in range(budget - int(sizes.sum())):
        _, q = heapq.heappop(heap)
        sizes[q] += 1
        if sizes[q] < upper[q]:
            heapq.heappush(heap, (-weight[q] * table[sizes[q] - 1], q))
    return sizes
