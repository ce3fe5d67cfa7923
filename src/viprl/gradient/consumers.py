"""What to do with each parameter's uses: add up norms, sketch them, or keep whole gradients."""

from __future__ import annotations

import torch
from torch import Tensor

from viprl.gradient.sketch import CountSketch
from viprl.gradient.uses import DirectUse, EmbeddingUse, ParameterUse, squared_norm


class NormSum:
    """Adds up (C,) squared norms over parameters; ``by_parameter`` keeps them apart as well."""

    def __init__(self, method: str = "auto") -> None:
        self.method = method
        self.by_parameter: dict[str, Tensor] = {}

    def reset(self) -> None:
        self.by_parameter = {}

    def __call__(self, name: str, uses: list[ParameterUse]) -> None:
        self.by_parameter[name] = squared_norm(uses, self.method)

    def total(self) -> Tensor:
        """(C,) in double precision."""
        return torch.stack([v.double() for v in self.by_parameter.values()]).sum(0)


class SketchSum:
    """Adds up (C, S) sketches over parameters."""

    def __init__(self, sketch: CountSketch) -> None:
        self.sketch = sketch
        self._sum: Tensor | None = None

    def reset(self) -> None:
        self._sum = None

    def __call__(self, name: str, uses: list[ParameterUse]) -> None:
        for use in uses:  # a sketch is linear, so tied weights need no meeting
            if self._sum is None:
                like = use.gradient if isinstance(use, DirectUse) else use.outputs
                self._sum = like.new_zeros(len(like), self.sketch.size)
            if isinstance(use, EmbeddingUse):
                self.sketch.add_rows(self._sum, name, use.ids, use.outputs)
                continue
            for part, gradient in use.dense():
                self.sketch.add_dense(self._sum[part], name, gradient)

    def total(self) -> Tensor:
        """(C, S)."""
        if self._sum is None:
            raise RuntimeError("no backward pass was seen")
        return self._sum


class WholeGradients:
    """Keeps (C, P) gradients, parameters in the order of ``shapes``; for small models and for checks."""

    def __init__(self, shapes: dict[str, tuple[int, ...]]) -> None:
        self.shapes = shapes
        self._parts: dict[str, Tensor] = {}

    def reset(self) -> None:
        self._parts = {}

    def __call__(self, name: str, uses: list[ParameterUse]) -> None:
        parts = [torch.cat([gradient.flatten(1) for _, gradient in use.dense()]) for use in uses]
        self._parts[name] = torch.stack(parts).sum(0)

    def total(self) -> Tensor:
        """(C, P); parameters that got no gradient are zero."""
        rows = len(next(iter(self._parts.values())))
        like = next(iter(self._parts.values()))
        blank = {n: like.new_zeros(rows, int(torch.Size(s).numel())) for n, s in self.shapes.items()}
        return torch.cat([self._parts.get(name, blank[name]) for name in self.shapes], dim=1)
