"""Side information: one numeric column per prompt, with missing values, as regression features."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import special

from viprl._arrays import FloatArray, IntArray
from viprl.prediction.matrices import magnitude

KNOTS = (0.2, 0.5, 0.8)
EDGE = 0.01
LARGEST = 1e300  # values are cut here, so that differences stay finite
ROUNDING = 1e-12  # a deviation below this share of the largest value is rounding, not information


class SideColumns:
    """Basis of one column: missing flag, the value, its logit where it is a rate, and hinges at three quantiles.

    The value is standardised over the prompts that have it; a missing value sets all but the flag to zero, so the
    flag alone carries what missingness says.
    """

    def __init__(self, name: str, values: FloatArray) -> None:
        self.name = name
        self._values = values = np.clip(values, -LARGEST, LARGEST)
        known = values[np.isfinite(values)]
        rate = bool(len(known) and known.min() >= 0 and known.max() <= 1 and len(np.unique(known)) > 2)
        line = _line(known, rate)
        knots = np.quantile(line, KNOTS) if len(line) else np.zeros(len(KNOTS))
        self.maps: dict[str, NDArray[Any]] = {"rate": np.array(rate), "knots": knots}
        basis = self._basis(known)
        centre, deviation = np.zeros(basis.shape[1]), np.ones(basis.shape[1])
        if len(known):
            unit = magnitude(basis)
            centre, deviation = (basis / unit).mean(axis=0) * unit, (basis / unit).std(axis=0) * unit
            deviation[deviation < ROUNDING * np.abs(basis).max(axis=0)] = 0.0
        self.maps |= {"centre": centre, "deviation": deviation}

    @property
    def width(self) -> int:
        return 1 + len(self.maps["centre"])

    def rows(self, rows: IntArray) -> NDArray[np.float32]:
        values = self._values[rows]
        known = np.isfinite(values)
        result = np.zeros((len(rows), self.width), np.float32)
        result[:, 0] = ~known
        deviation = self.maps["deviation"]
        away = self._basis(values[known]) - self.maps["centre"]
        with np.errstate(over="ignore"):
            scaled = away / np.where(deviation > 0, deviation, 1.0)
        result[known, 1:] = np.where(deviation > 0, np.clip(scaled, -5, 5), 0.0)
        return result

    def _basis(self, known: FloatArray) -> FloatArray:
        line = _line(known, bool(self.maps["rate"]))
        hinges = np.maximum(line[:, None] - self.maps["knots"][None, :], 0.0)
        return np.concatenate([known[:, None], line[:, None], hinges], axis=1)


def _line(known: FloatArray, rate: bool) -> FloatArray:
    """The value on the scale where straight lines are plausible: logits of rates, the numbers themselves else."""
    return np.asarray(special.logit(np.clip(known, EDGE, 1 - EDGE)), np.float64) if rate else known
