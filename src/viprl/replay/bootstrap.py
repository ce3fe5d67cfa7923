"""Paired differences between rules, resampled over steps.

All rules saw the same steps, so a resample of steps is applied to all of them at once and what they share cancels.
Neighbouring steps are not independent (a prompt's visits, the drifting policy): blocks of about T^(1/3) consecutive
steps are drawn, on a circle, within each seed (Politis and Romano 1992).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from viprl._arrays import FloatArray
from viprl.evaluation.intervals import Interval

RESAMPLES = 2000
LEVEL = 0.95
MOST_UNITS = 4000
FEWEST_STEPS = 10  # fewer say too little about how steps differ: no interval is given


class PairedBootstrap:
    """One set of resamples of steps, for any number of ratios of sums.

    Args:
        lengths: number of steps of each seed's run.
        resamples, seed, level: of the bootstrap.
    """

    def __init__(
        self, lengths: Sequence[int], *, resamples: int = RESAMPLES, seed: int = 0, level: float = LEVEL
    ) -> None:
        rng = np.random.default_rng([seed, 99])
        self.level = level
        self.enough = sum(lengths) >= FEWEST_STEPS
        # very long runs: neighbouring steps are bundled first, which blocks would keep together anyway
        self._bundles = [-(-length // MOST_UNITS) for length in lengths]
        units = [-(-length // bundle) for length, bundle in zip(lengths, self._bundles, strict=True)]
        self._weights = [_block_weights(rng, count, resamples) for count in units]

    def ratio(self, above: Sequence[FloatArray], below: Sequence[FloatArray]) -> tuple[float, FloatArray]:
        """Mean over seeds of sum(above) / sum(below): its value, and its value in every resample (R,).

        Args:
            above, below: one (T,) array a seed. NaN where the denominator is zero.
        """
        values, resampled = [], []
        for weights, bundle, x, y in zip(self._weights, self._bundles, above, below, strict=True):
            x, y = (np.add.reduceat(values, np.arange(0, len(values), bundle)) for values in (x, y))
            with np.errstate(divide="ignore", invalid="ignore"):
                values.append(float(x.sum() / y.sum()) if y.sum() > 0 else np.nan)
                resampled.append((weights @ x) / (weights @ y))
        return float(np.mean(values)), np.mean(resampled, axis=0)

    def interval(self, estimate: float, resampled: FloatArray) -> Interval:
        """Percentile interval; infinite where nothing can be said: under ten steps, or hardly a finite resample."""
        fine = resampled[np.isfinite(resampled)]
        if not self.enough or len(fine) < 3 or not np.isfinite(estimate):
            return Interval(estimate, -np.inf, np.inf, self.level)
        low, high = np.quantile(fine, [(1 - self.level) / 2, (1 + self.level) / 2])
        return Interval(estimate, float(low), float(high), self.level)


def block_length(steps: int) -> int:
    """Steps of a block: about T^(1/3)."""
    return max(1, round(float(np.cbrt(steps))))


def _block_weights(rng: np.random.Generator, length: int, resamples: int) -> FloatArray:
    """(R, T) how often each step occurs in each resample."""
    block = block_length(length)
    blocks = -(-length // block)
    starts = rng.integers(0, max(length, 1), (resamples, blocks))
    rows = (starts[:, :, None] + np.arange(block)) % max(length, 1)
    flat = rows.reshape(resamples, -1)[:, :length] + np.arange(resamples)[:, None] * length
    counts = np.bincount(flat.reshape(-1), minlength=resamples * length)
    return counts.reshape(resamples, length).astype(np.float64)
