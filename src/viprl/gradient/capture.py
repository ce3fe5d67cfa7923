"""Hooks that see, during one backward pass, how every parameter entered the loss of each rollout.

Rows of the batch must not mix (no batch norm); attention inside a row is fine. Supported parameters: weights and
biases of Linear (also LoRA's) and GPT-2's Conv1D, Embedding weights, one-dimensional weights and biases of norm layers
(any class whose name ends in "Norm" and that is linear in them). Anything else is listed in ``unsupported``.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call

from viprl.errors import ConfigurationError
from viprl.gradient.uses import DirectUse, EmbeddingUse, LinearUse, ParameterUse

LayerFilter = Callable[[str, nn.Module], bool]
Consumer = Callable[[str, list[ParameterUse]], None]


class GradientCapture:
    """Calls ``consumer(parameter_name, uses)`` once per parameter and backward pass, as soon as all uses are known.

    Args:
        model: its trainable parameters are watched (``parameters`` narrows that).
        consumer: receives uses with one row for each rollout.
        layers: keeps modules for which ``layers(name, module)`` holds; None keeps all.
        trainable_only: False also watches frozen parameters (for measuring with ``requires_grad`` off).

    Between ``attach()`` and ``detach()`` every backward pass is seen; ``active`` switches it off for free passes.
    ``select`` (row indices) and ``segments`` (B, T), set before the backward pass, drop rows and unpack packed rows:
    ``segments[b, t]`` is the rollout of a token, -1 for none.
    """

    def __init__(
        self,
        model: nn.Module,
        consumer: Consumer,
        *,
        layers: LayerFilter | None = None,
        trainable_only: bool = True,
    ) -> None:
        self.consumer = consumer
        self.active = True
        self.select: Tensor | None = None
        self.segments: Tensor | None = None
        self.unsupported: list[str] = []
        self.incomplete: list[str] = []
        self._modules: list[tuple[nn.Module, str, dict[str, str]]] = []
        self._handles: list[Any] = []
        self._pending: dict[str, list[ParameterUse]] = defaultdict(list)
        self._seen: set[str] = set()
        self._uses_expected: dict[str, int] = defaultdict(int)
        self._unpack: tuple[Tensor, Tensor] | None = None
        self._row_count: int | None = None
        self.shapes: dict[str, tuple[int, ...]] = {}
        self._plan(model, layers, trainable_only)

    def _plan(self, model: nn.Module, layers: LayerFilter | None, trainable_only: bool) -> None:
        names: dict[int, str] = {}
        for module_name, module in model.named_modules():
            own: dict[str, str] = {}
            for local, parameter in module.named_parameters(recurse=False):
                if trainable_only and not parameter.requires_grad:
                    continue
                full = f"{module_name}.{local}" if module_name else local
                if layers is not None and not layers(module_name, module):
                    continue
                if layer_kind(module) is None or (layer_kind(module) == "norm" and parameter.dim() != 1):
                    self.unsupported.append(full)
                    continue
                name = names.setdefault(id(parameter), full)
                own[local] = name
                self._uses_expected[name] += 1
                self.shapes[name] = tuple(parameter.shape)
            if own:
                self._modules.append((module, module_name, own))
        if not self._modules:
            raise ConfigurationError("at least one supported trainable layer must be watched, but none was found")

    def attach(self) -> None:
        """Put the hooks on; calling it twice is harmless."""
        if not self._handles:
            for module, name, own in self._modules:
                self._handles.append(module.register_forward_hook(self._forward_hook(name, own)))

    def detach(self) -> None:
        """Take the hooks off."""
        for handle in self._handles:
            handle.remove()
        self._handles = []

    def __enter__(self) -> GradientCapture:
        self.attach()
        return self

    def __exit__(self, *_: object) -> None:
        self.detach()

    def start(self, *, select: Tensor | None = None, segments: Tensor | None = None) -> None:
        """Forget the last pass. ``select`` counts rollouts after unpacking when both are given."""
        self._pending.clear()
        self._seen.clear()
        self.select, self.segments = select, segments
        self._unpack = None if segments is None else _unpacking(segments)
        self._row_count = None

    def finish(self) -> None:
        """Drop parameters that were seen in part only: a tied embedding whose output layer runs in a fused kernel.

        Part of a gradient says little about the whole; ``incomplete`` names what was dropped.
        """
        self.incomplete = sorted(self._pending)
        self._pending.clear()

    def _forward_hook(self, module_name: str, own: dict[str, str]) -> Callable[..., None]:
        def hook(module: nn.Module, args: tuple[Any, ...], output: Any) -> None:
            if not self.active or not isinstance(output, Tensor) or not output.requires_grad:
                return
            inputs = args[0].detach()

            def on_gradient(gradient: Tensor) -> None:
                with torch.no_grad():
                    self._record(module, own, self._rows(inputs), self._rows(gradient))

            output.register_hook(on_gradient)  # type: ignore[no-untyped-call]

        return hook

    def _rows(self, value: Tensor) -> Tensor:
        if self._unpack is not None:
            index, present = self._unpack
            flat = value.reshape(-1, *value.shape[2:])[index]
            value = flat * present.to(flat.dtype).view(*present.shape, *[1] * (flat.dim() - 2))
        return value if self.select is None else value[self.select]

    def _record(self, module: nn.Module, own: dict[str, str], inputs: Tensor, gradient: Tensor) -> None:
        if self._row_count is None:
            self._row_count = len(gradient)
        for local, name in own.items():
            if len(gradient) != self._row_count:
                raise ConfigurationError(
                    f"every layer must see as many rows, but {name} saw {len(gradient)}, others {self._row_count} "
                    "(pass position_ids of shape (rows, tokens))"
                )
            if name in self._seen:
                raise ConfigurationError(
                    f"a parameter must be used as often as it is registered, but {name} was used again in one pass"
                )
            self._pending[name].append(_use(module, local, inputs, gradient))
            if len(self._pending[name]) == self._uses_expected[name]:
                self._seen.add(name)
                self.consumer(name, self._pending.pop(name))


def layer_kind(module: nn.Module) -> str | None:
    """ "linear", "conv1d", "embedding" or "norm"; None for modules whose parameters are not covered."""
    if isinstance(module, nn.Linear):
        return "linear"
    if isinstance(module, nn.Embedding):
        return "embedding"
    name = type(module).__name__
    weight = getattr(module, "weight", None)
    if name == "Conv1D" and isinstance(weight, Tensor) and weight.dim() == 2:
        return "conv1d"
    return "norm" if name.endswith("Norm") else None


def _use(module: nn.Module, local: str, inputs: Tensor, gradient: Tensor) -> ParameterUse:
    layer: Any = module
    kind = layer_kind(module)
    if kind in ("linear", "conv1d") and local == "weight":
        # Conv1D keeps its weight as (I, O), so inputs and outputs change places
        a, b = _three(inputs), _three(gradient)
        return LinearUse(a, b) if kind == "linear" else LinearUse(b, a)
    if local == "bias":
        return DirectUse(_three(gradient).sum(1))
    if kind == "embedding":
        ids, outputs = inputs, _three(gradient)
        padding = layer.padding_idx
        if padding is not None:  # autograd gives the padding row no gradient
            outputs = outputs * (ids != padding).unsqueeze(-1).to(outputs.dtype)
        return EmbeddingUse(ids, outputs, layer.num_embeddings)
    return DirectUse(_three(_norm_slope(module, inputs) * gradient).sum(1))


def _three(value: Tensor) -> Tensor:
    """(C, T, K): further axes between the first and the last (heads) count as tokens."""
    return value.reshape(value.shape[0], -1, value.shape[-1])


def _norm_slope(module: nn.Module, inputs: Tensor) -> Tensor:
    """d output / d weight of a layer that is linear in its weight (RMSNorm, 1 + w variants, LayerNorm)."""
    parameters = dict(module.named_parameters(recurse=False))
    ones = {**parameters, "weight": torch.ones_like(parameters["weight"])}
    zeros = {**parameters, "weight": torch.zeros_like(parameters["weight"])}
    slope: Tensor = functional_call(module, ones, (inputs,)) - functional_call(module, zeros, (inputs,))
    return slope


def _unpacking(segments: Tensor) -> tuple[Tensor, Tensor]:
    """Token index (C, T') and presence (C, T') of each rollout in flattened packed rows (B, T)."""
    flat = segments.reshape(-1)
    count = int(flat.max().item()) + 1
    positions = [torch.nonzero(flat == rollout).flatten() for rollout in range(count)]
    longest = max((len(p) for p in positions), default=0)
    index = flat.new_zeros(count, longest, dtype=torch.long)
    present = torch.zeros(count, longest, dtype=torch.bool, device=flat.device)
    for rollout, where in enumerate(positions):
        index[rollout, : len(where)] = where
        present[rollout, : len(where)] = True
    return index, present


def only_named(patterns: Iterable[str]) -> LayerFilter:
    """A filter that keeps modules whose name contains one of the patterns."""
    wanted = tuple(patterns)
    return lambda name, _module: any(pattern in name for pattern in wanted)
