"""Gradient norms of single rollouts, read off a training run's own backward pass.

If the loss is a sum over rollouts with coefficients A_j (the advantages, times whatever all rollouts share), the
gradient of rollout j's own log-probability has the squared norm ||grad loss_j||^2 / A_j^2. Rollouts with A_j = 0 leave
no trace in the backward pass; they are skipped, which costs no bias: given its outcome, a rollout's norm does not
depend on the other rollouts of its group that made A_j zero.

Usage, once per micro-batch::

    hook = GradientNormHook(model)
    hook.begin(advantages)            # before the forward pass
    loss(...).backward()
    squared = hook.collect()          # (C,), NaN where A_j = 0
"""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from viprl.errors import ConfigurationError, InvalidInputError
from viprl.gradient.capture import GradientCapture, LayerFilter, layer_kind
from viprl.gradient.consumers import NormSum


class GradientNormHook:
    """Squared per-rollout gradient norms of chosen layers.

    Args:
        model: the model that is trained (not its wrapper for data parallelism).
        layers: which modules to watch, as a filter ``(name, module) -> bool``; "default" watches few (see
            ``default_layers``), None or "all" every supported one.

    The result is in units of the loss: factors that all rollouts share (1 / batch size, gradient accumulation) stay
    in it and must be the same at every step, which is all that allocation needs.
    """

    def __init__(self, model: nn.Module, *, layers: LayerFilter | str | None = "default") -> None:
        if isinstance(layers, str):
            if layers not in ("default", "all"):
                raise InvalidInputError(f'layers must be "default", "all" or a filter, but got {layers!r}')
            layers = default_layers(model) if layers == "default" else None
        self._norms = NormSum()
        self._capture = GradientCapture(model, self._consume, layers=layers)
        self._capture.active = False
        self._capture.attach()
        self._squared_advantages: NDArray[np.float64] | None = None
        self._live: Tensor | None = None
        self._few = False
        self.seconds = 0.0

    @property
    def watched(self) -> dict[str, tuple[int, ...]]:
        """Parameters whose gradients enter the norms, with their shapes."""
        return dict(self._capture.shapes)

    @property
    def unsupported(self) -> list[str]:
        """Trainable parameters of the chosen layers that no rule covers; their gradients are left out."""
        return list(self._capture.unsupported)

    @property
    def incomplete(self) -> list[str]:
        """Parameters that the last pass used outside their modules, so that they were left out as well."""
        return list(self._capture.incomplete)

    def begin(self, advantages: Any, *, segments: Tensor | None = None) -> None:
        """Arm the hook for one forward and backward pass.

        Args:
            advantages: (C,) coefficients of the rollouts in the loss, prompt weights included.
            segments: (rows, tokens) rollout of each token in packed batches, -1 for none.
        """
        values = torch.as_tensor(advantages).detach().double().cpu()
        if values.dim() != 1 or not bool(torch.isfinite(values).all()):
            raise InvalidInputError(f"advantages must be finite and (C,), but got shape {tuple(values.shape)}")
        self._squared_advantages = values.square().numpy()
        self._live = torch.nonzero(values).flatten()
        self._norms.reset()
        # copying the live rows of every layer costs as much as their norms, so it pays only where few are live
        self._few = 2 * len(self._live) < len(values)
        self._capture.start(select=self._live if self._few else None, segments=segments)
        self._capture.active = len(self._live) > 0

    def collect(self) -> NDArray[np.float64]:
        """(C,) squared norms of the pass since ``begin``; NaN for rollouts with advantage zero.

        Raises:
            ConfigurationError: no ``begin``, or no backward pass came by.
        """
        if self._squared_advantages is None or self._live is None:
            raise ConfigurationError("begin() must come before collect(), but it did not")
        squares, live = self._squared_advantages, self._live.numpy()
        self._squared_advantages = None
        self._capture.active = False
        result = np.full(len(squares), np.nan)
        if len(live):
            self._capture.finish()
            if not self._norms.by_parameter:
                raise ConfigurationError("a backward pass must lie between begin() and collect(), but none was seen")
            total = self._norms.total().cpu().numpy()
            result[live] = (total if self._few else total[live]) / squares[live]
        return result

    def close(self) -> None:
        """Take the hooks off the model."""
        self._capture.detach()

    def _consume(self, name: str, uses: list[Any]) -> None:
        start = time.perf_counter()
        self._norms(name, uses)
        self.seconds += time.perf_counter() - start


def default_layers(model: nn.Module) -> LayerFilter:
    """The linear layers of every fourth block (at least the last): a sample of the gradient at a quarter of the cost.

    Norms are used to compare outcomes and prompts, so a constant share of the gradient is as good as all of it; blocks
    are spread over the depth because their shares shift with it.
    """
    blocks = _blocks(model)
    if not blocks:
        return lambda name, module: True
    kept = tuple(f"{name}." for name in reversed(list(reversed(blocks))[::4]))
    return lambda name, module: name.startswith(kept) and layer_kind(module) in ("linear", "conv1d")


def _blocks(model: nn.Module) -> list[str]:
    """Names of the members of the longest module list: the transformer's blocks."""
    lists = [(name, module) for name, module in model.named_modules() if isinstance(module, nn.ModuleList)]
    if not lists:
        return []
    name, longest = max(lists, key=lambda item: len(item[1]))
    return [f"{name}.{i}" for i in range(len(longest))]
