"""Simple predictors to compare with: none of them reads the prompt's text."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, DTypeLike

from viprl.errors import CheckpointError, InvalidInputError
from viprl.prediction.base import Belief, Prediction, Predictor, PromptId
from viprl.prediction.counts import Counts
from viprl.prediction.table import PromptTable


class TablePredictor(Predictor):
    """What the table-based predictors share: ids, counts, and their state.

    Subclasses set ``columns`` and ``settings`` and implement ``predict`` and ``_learn``; numbers that are not
    per-prompt live in ``self._global``, a dict that is part of the state.
    """

    columns: Mapping[str, tuple[DTypeLike, tuple[int, ...]]] = {}

    def __init__(self, prompt_ids: Iterable[PromptId] | None, settings: Mapping[str, Any]) -> None:
        self._table = PromptTable(prompt_ids, self.columns)
        self._settings = dict(settings)
        self._global: dict[str, Any] = {}

    def observe(self, ids: Sequence[PromptId], successes: ArrayLike, rollouts: ArrayLike) -> None:
        """Learn from one step: successes, rollouts (B,); repeated ids add up, zero rollouts are no news.

        Raises:
            InvalidInputError: counts of the wrong length, not finite, or successes outside [0, rollouts].
            UnknownPromptError: an id that is not one of ``prompt_ids`` (where those were given).
        """
        counts = self._table.receive(ids, successes, rollouts)
        if len(counts.rows):
            self._learn(counts)
            self._table["visits"][counts.rows] += 1

    def _learn(self, counts: Counts) -> None:
        """Take in the counts of one step; visits are counted by the caller."""
        raise NotImplementedError

    def __repr__(self) -> str:
        seen = int(np.count_nonzero(self._table["visits"]))
        known = f"{len(self._table)} prompts, " if self._table.index.fixed else ""
        settings = "".join(f"; {name}={value}" for name, value in self._settings.items())
        return f"{type(self).__name__}({known}{seen} seen{settings})"

    def state_dict(self) -> dict[str, Any]:
        return {
            "kind": type(self).__name__,
            "settings": dict(self._settings),
            "table": self._table.state(),
            "global": {k: np.copy(v) if isinstance(v, np.ndarray) else v for k, v in self._global.items()},
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore ``state_dict()`` of a predictor with the same settings and prompt_ids.

        Raises:
            CheckpointError: other settings, other prompt_ids, or the state of another predictor.
        """
        self._check_state(state)
        self._table.load(state["table"])
        self._restore_global(state["global"])

    def merge_state(self, state: dict[str, Any]) -> dict[str, list[PromptId]]:
        """Load the state of a run with other prompt_ids: keeps what both know.

        Returns:
            The ids that are ``new`` here, ``gone`` from here and ``kept``.
        """
        self._check_state(state)
        report = self._table.merge(state["table"])
        self._restore_global(state["global"])
        return report

    def metrics(self) -> dict[str, float]:
        return {"prompts_seen": float(np.count_nonzero(self._table["visits"]))}

    def _check_state(self, state: Mapping[str, Any]) -> None:
        if state.get("kind") != type(self).__name__:
            raise CheckpointError(
                f"the state must be of a {type(self).__name__}, but got that of a {state.get('kind')}"
            )
        if dict(state["settings"]) != self._settings:
            raise CheckpointError(
                f"the state's settings must be the predictor's, but got {dict(state['settings'])}, {self._settings}"
            )

    def _restore_global(self, values: Mapping[str, Any]) -> None:
        self._global = {
            k: np.array(v, dtype=self._global[k].dtype) if isinstance(self._global[k], np.ndarray) else v
            for k, v in values.items()
        }


class GlobalMean(TablePredictor):
    """The last step's mean success rate, for every prompt; ``initial`` before any step."""

    def __init__(self, prompt_ids: Iterable[PromptId] | None = None, *, initial: float = 0.5) -> None:
        _check_rate("initial", initial)
        super().__init__(prompt_ids, {"initial": float(initial)})
        self._global = {"rate": float(initial)}

    def predict(self, ids: Sequence[PromptId]) -> Prediction:
        rows = self._table.rows(ids)
        return Prediction.point(np.full(len(rows), self._global["rate"]), cold=self._table.cold(rows))

    def _learn(self, counts: Counts) -> None:
        self._global["rate"] = float(counts.successes.sum() / counts.rollouts.sum())


class LastRate(TablePredictor):
    """Each prompt's last success rate, as if it were exact; ``initial`` before its first visit."""

    columns: Mapping[str, tuple[DTypeLike, tuple[int, ...]]] = {"rate": (np.float64, ())}

    def __init__(self, prompt_ids: Iterable[PromptId] | None = None, *, initial: float = 0.35) -> None:
        _check_rate("initial", initial)
        super().__init__(prompt_ids, {"initial": float(initial)})

    def predict(self, ids: Sequence[PromptId]) -> Prediction:
        rows = self._table.rows(ids)
        cold = self._table.cold(rows)
        rate = np.where(cold, self._settings["initial"], self._table.take("rate", rows))
        return Prediction.point(rate, cold=cold)

    def _learn(self, counts: Counts) -> None:
        self._table["rate"][counts.rows] = counts.rates


class DiscountedBeta(TablePredictor):
    """Independent Beta posteriors with forgetting, one a prompt.

    At each of a prompt's visits (a, b) <- keep (a, b) + (1 - keep) prior + (successes, failures), so old counts
    fade at the rate ``keep`` and the prior never does. E[p(1-p)] = ab / ((a + b)(a + b + 1)).

    Args:
        prior: (a0, b0), both positive.
        keep: share of the old counts kept at a visit, in [0, 1].
    """

    columns: Mapping[str, tuple[DTypeLike, tuple[int, ...]]] = {
        "successes": (np.float64, ()),
        "failures": (np.float64, ()),
    }

    def __init__(
        self,
        prompt_ids: Iterable[PromptId] | None = None,
        *,
        prior: tuple[float, float] = (0.3, 0.45),
        keep: float = 0.8,
    ) -> None:
        if len(prior) != 2 or not (prior[0] > 0 and prior[1] > 0):
            raise InvalidInputError(f"prior must be two positive numbers, but got {prior}")
        _check_rate("keep", keep)
        super().__init__(prompt_ids, {"prior": [float(prior[0]), float(prior[1])], "keep": float(keep)})

    def predict(self, ids: Sequence[PromptId]) -> Prediction:
        rows = self._table.rows(ids)
        a0, b0 = self._settings["prior"]
        return Prediction.beta(
            a0 + self._table.take("successes", rows),
            b0 + self._table.take("failures", rows),
            cold=self._table.cold(rows),
        )

    def belief(self, prompt_id: PromptId) -> Belief:
        """By the moments of the Beta law."""
        row = int(self._table.rows((prompt_id,))[0])
        k, m = (float(self._table[c][row]) if row >= 0 else 0.0 for c in ("successes", "failures"))
        a, b = self._settings["prior"][0] + k, self._settings["prior"][1] + m
        s = a + b
        spread = a * b / (s * (s + 1))
        square = spread * (a + 1) * (b + 1) / ((s + 2) * (s + 3))
        return Belief(a / s, spread, spread, square, row < 0 or not self._table["visits"][row])

    def _learn(self, counts: Counts) -> None:
        # The prior's weight is constant (keep + (1 - keep) = 1), so only the counts need to be stored.
        keep, rows = self._settings["keep"], counts.rows
        self._table["successes"][rows] = keep * self._table["successes"][rows] + counts.successes
        self._table["failures"][rows] = keep * self._table["failures"][rows] + counts.rollouts - counts.successes


def _check_rate(name: str, value: float) -> None:
    if not 0 <= value <= 1:
        raise InvalidInputError(f"0 <= {name} <= 1 must hold, but got {value}")
