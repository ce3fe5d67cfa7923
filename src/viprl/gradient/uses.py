"""How one parameter entered the loss, and what that says about each rollout's gradient of it.

Notation: C rollouts, T token positions, I inputs, O outputs. A linear layer with inputs a (C, T, I) and gradients of
its outputs b (C, T, O) gives rollout c the weight gradient G_c = sum_t b_ct a_ct' (O, I). Its squared norm needs no
G_c ("ghost norm"):

    ||G_c||^2 = sum_{t,s} (b_ct . b_cs) (a_ct . a_cs)

which costs T^2 (I + O) products against T I O for forming G_c. Every use below knows both and takes the cheaper one.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

CHUNK_ELEMENTS = 32_000_000
"""Largest number of gradient elements that are materialised at once (128 MB in single precision)."""


@dataclass
class LinearUse:
    """y = x W' with W (O, I): inputs (C, T, I) and output gradients (C, T, O)."""

    inputs: Tensor
    outputs: Tensor

    @property
    def shape(self) -> tuple[int, int]:
        return self.outputs.shape[-1], self.inputs.shape[-1]

    def rows(self, index: Tensor) -> LinearUse:
        return LinearUse(self.inputs[index], self.outputs[index])

    def ghost_is_cheaper(self) -> bool:
        tokens = self.inputs.shape[1]
        out, inp = self.shape
        return tokens * (out + inp) <= out * inp

    def squared_norm(self, method: str = "auto") -> Tensor:
        """(C,) squared norms; ``method`` is "auto", "ghost" or "direct"."""
        if method == "ghost" or (method == "auto" and self.ghost_is_cheaper()):
            a = torch.bmm(self.inputs, self.inputs.transpose(1, 2))
            b = torch.bmm(self.outputs, self.outputs.transpose(1, 2))
            return (a * b).sum(dim=(1, 2))
        return torch.cat([gradient.flatten(1).square().sum(1) for _, gradient in self.dense()])

    def dense(self) -> Iterator[tuple[slice, Tensor]]:
        """Gradients (c, O, I) of consecutive rollouts, few enough at a time for memory."""
        out, inp = self.shape
        step = max(1, CHUNK_ELEMENTS // (out * inp))
        for start in range(0, len(self.inputs), step):
            part = slice(start, min(start + step, len(self.inputs)))
            yield part, torch.bmm(self.outputs[part].transpose(1, 2), self.inputs[part])

    def inner(self, other: ParameterUse) -> Tensor:
        """(C,) inner products with another use of the same matrix."""
        if isinstance(other, EmbeddingUse):
            return other.inner(self)
        if not isinstance(other, LinearUse):
            raise TypeError(f"a linear use meets linear or embedding uses only, but got {type(other).__name__}")
        a = torch.bmm(self.inputs, other.inputs.transpose(1, 2))
        b = torch.bmm(self.outputs, other.outputs.transpose(1, 2))
        return (a * b).sum(dim=(1, 2))


@dataclass
class EmbeddingUse:
    """y = W[ids] with W (V, I): ids (C, T) and output gradients (C, T, I)."""

    ids: Tensor
    outputs: Tensor
    vocabulary: int

    @property
    def shape(self) -> tuple[int, int]:
        return self.vocabulary, self.outputs.shape[-1]

    def rows(self, index: Tensor) -> EmbeddingUse:
        return EmbeddingUse(self.ids[index], self.outputs[index], self.vocabulary)

    def squared_norm(self, method: str = "auto") -> Tensor:
        """(C,): tokens meet where their ids agree, so the V x I gradient never exists (nor is "direct" different)."""
        same = (self.ids[:, :, None] == self.ids[:, None, :]).to(self.outputs.dtype)
        return (same * torch.bmm(self.outputs, self.outputs.transpose(1, 2))).sum(dim=(1, 2))

    def dense(self) -> Iterator[tuple[slice, Tensor]]:
        """Gradients (c, V, I) of consecutive rollouts."""
        vocabulary, width = self.shape
        step = max(1, CHUNK_ELEMENTS // (vocabulary * width))
        for start in range(0, len(self.ids), step):
            part = slice(start, min(start + step, len(self.ids)))
            count = part.stop - part.start
            gradient = self.outputs.new_zeros(count, vocabulary, width)
            index = self.ids[part][:, :, None].expand(-1, -1, width)
            yield part, gradient.scatter_add_(1, index, self.outputs[part])

    def inner(self, other: ParameterUse) -> Tensor:
        """(C,) with the tied output layer: sum_{t,s} b_s[id_t] (e_t . a_s)."""
        if isinstance(other, EmbeddingUse):
            same = (self.ids[:, :, None] == other.ids[:, None, :]).to(self.outputs.dtype)
            return (same * torch.bmm(self.outputs, other.outputs.transpose(1, 2))).sum(dim=(1, 2))
        if not isinstance(other, LinearUse):
            raise TypeError(f"an embedding use meets linear or embedding uses only, but got {type(other).__name__}")
        width = other.outputs.shape[1]
        picked = torch.gather(other.outputs, 2, self.ids[:, None, :].expand(-1, width, -1))
        return (picked * torch.bmm(other.inputs, self.outputs.transpose(1, 2))).sum(dim=(1, 2))


@dataclass
class DirectUse:
    """A small parameter (bias, norm weight) whose gradients (C, K) are formed outright."""

    gradient: Tensor

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self.gradient.shape[1:])

    def rows(self, index: Tensor) -> DirectUse:
        return DirectUse(self.gradient[index])

    def squared_norm(self, method: str = "auto") -> Tensor:
        return self.gradient.square().sum(1)

    def dense(self) -> Iterator[tuple[slice, Tensor]]:
        yield slice(0, len(self.gradient)), self.gradient

    def inner(self, other: ParameterUse) -> Tensor:
        if not isinstance(other, DirectUse):
            raise TypeError(f"a direct use meets direct uses only, but got {type(other).__name__}")
        return (self.gradient * other.gradient).sum(1)


ParameterUse = LinearUse | EmbeddingUse | DirectUse


def squared_norm(uses: Sequence[ParameterUse], method: str = "auto") -> Tensor:
    """(C,) squared norms of one parameter's gradient, all of whose uses are given (tied weights have several)."""
    total = sum((use.squared_norm(method) for use in uses[1:]), start=uses[0].squared_norm(method))
    for i, first in enumerate(uses):
        for second in uses[i + 1 :]:
            total = total + 2 * first.inner(second)
    return total
