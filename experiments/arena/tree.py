"""The small Llama with everything shared that can be: each distinct prefix is computed once, forwards and backwards.

Rollouts of a prompt differ late, if at all. ``sample`` walks the tree of their distinct prefixes with the graph kept,
so the policy-gradient loss (a weighted sum of the edges' log-probabilities) needs no second forward pass: a step of 256
rollouts costs a tenth of a second on one core. The weights are the parameters of the Transformers model itself.

Notation: P prompts, C rollouts, M nodes (distinct prefixes) at one depth, W prompt tokens, T depths, V tokens.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

NEW_TOKENS = 6


@dataclass
class Samples:
    """C rollouts: ``tokens`` (C, T) padded with -1 at the end, ``edges`` T pairs (log-probabilities (E,), edge (C,)).

    An edge is -1 where the rollout had ended before.
    """

    tokens: np.ndarray
    edges: list[tuple[Tensor, np.ndarray]]

    def weighted_log_probability(self, weights: np.ndarray) -> Tensor:
        """sum_j weights_j log pi(rollout j), differentiable."""
        total = torch.zeros(())
        for logs, edge in self.edges:
            live = edge >= 0
            summed = np.bincount(edge[live], weights=weights[live], minlength=len(logs))
            total = total + logs @ torch.as_tensor(summed, dtype=torch.float32)
        return total


class TreePolicy:
    """The functional form of a ``LlamaForCausalLM`` with tied embeddings."""

    def __init__(self, model: Any, tokenizer: Any) -> None:
        self.model, self.tokenizer = model, tokenizer
        self.eos = tokenizer.eos_token_id
        config = model.config
        self.heads, self.eps = config.num_attention_heads, config.rms_norm_eps
        self.size = config.hidden_size // self.heads
        base = 1.0 / 10000.0 ** (torch.arange(0, self.size, 2) / self.size)
        angle = torch.arange(config.max_position_embeddings)[:, None] * torch.cat([base, base])
        self.cos, self.sin = angle.cos(), angle.sin()

    def sample(self, prompts: list[list[int]], rows: np.ndarray, generator: torch.Generator) -> Samples:
        """One completion for each rollout; ``rows`` (C,) says of which prompt."""
        state, row = self._read(prompts), np.asarray(rows)
        node = row.copy()  # the node at which each rollout stands; first depth: the prompt itself
        logits, tokens, edges = state.logits, np.full((len(row), NEW_TOKENS), -1), []
        running = np.arange(len(row))
        for depth in range(NEW_TOKENS):
            logs = torch.log_softmax(logits, -1)
            at = torch.as_tensor(node[running])
            drawn = torch.multinomial(logs.detach().exp()[at], 1, generator=generator)[:, 0].numpy()
            tokens[running, depth] = drawn
            key, edge = np.unique(node[running] * logs.shape[1] + drawn, return_inverse=True)
            parent, token = torch.as_tensor(key // logs.shape[1]), torch.as_tensor(key % logs.shape[1])
            whole = np.full(len(row), -1)
            whole[running] = edge
            edges.append((logs[parent, token], whole))
            goes_on = key % logs.shape[1] != self.eos
            renamed = np.cumsum(goes_on) - 1
            keep = goes_on[edge]
            node[running] = renamed[edge]
            running = running[keep]
            if not len(running) or depth == NEW_TOKENS - 1:
                break
            logits = state.extend(self, parent[goes_on], token[goes_on])
        return Samples(tokens, edges)

    @torch.no_grad()
    def probability(self, prompts: list[list[int]], answers: list[list[int]]) -> np.ndarray:
        """(P,) exact probability of each answer followed by the end of the sequence."""
        return self.log_probability(prompts, answers).double().exp().numpy()

    def log_probability(self, prompts: list[list[int]], answers: list[list[int]]) -> Tensor:
        """(P,) logarithm of ``probability``, differentiable."""
        state = self._read(prompts)
        total, here = torch.zeros(len(prompts)), torch.arange(len(prompts))
        texts = [[*a, self.eos] for a in answers]
        logits = state.logits
        for depth in range(max(map(len, texts))):
            live = [i for i, row in enumerate(here.tolist()) if depth < len(texts[row])]
            here, logits, token = here[live], logits[live], torch.tensor([texts[i][depth] for i in here[live].tolist()])
            total = total.index_add(0, here, torch.log_softmax(logits, -1).gather(1, token[:, None])[:, 0])
            if max(map(len, texts)) > depth + 1:
                logits = state.extend(self, torch.tensor(live), token)
        return total

    def text(self, tokens: np.ndarray) -> str:
        """The text of one rollout, without the end; empty where it did not end."""
        ids = [int(t) for t in tokens if t >= 0]
        return self.tokenizer.decode(ids[:-1]) if ids and ids[-1] == self.eos else ""

    def _read(self, prompts: list[list[int]]) -> _State:
        lengths = torch.tensor([len(p) for p in prompts])
        width = int(lengths.max())
        ids = torch.tensor([p + [0] * (width - len(p)) for p in prompts])
        positions = torch.arange(width).expand(len(prompts), width)
        mask = torch.where(torch.arange(width)[None, :] <= torch.arange(width)[:, None], 0.0, -1e9)
        x = self.model.model.embed_tokens.weight[ids]
        cache = []
        for layer in self.model.model.layers:
            x, keys, values = self._layer(layer, x, positions, None, mask)
            cache.append((keys, values))
        last = x[torch.arange(len(prompts)), lengths - 1]
        return _State(self._logits(last), cache, lengths, width)

    def _logits(self, x: Tensor) -> Tensor:
        norm = self.model.model.norm.weight
        return functional.linear(functional.rms_norm(x, (x.shape[-1],), norm, self.eps), self.model.lm_head.weight)

    def _layer(
        self, layer: Any, x: Tensor, positions: Tensor, past: Any, mask: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """One block: x (R, S, D) at positions (R, S); past keys and values (R, H, K, D/H); mask broadcast over keys."""
        rows, length, width = x.shape
        attention, mlp = layer.self_attn, layer.mlp
        h = functional.rms_norm(x, (width,), layer.input_layernorm.weight, self.eps)
        q, k, v = (
            functional.linear(h, w.weight).view(rows, length, self.heads, self.size).transpose(1, 2)
            for w in (attention.q_proj, attention.k_proj, attention.v_proj)
        )
        cos, sin = self.cos[positions][:, None], self.sin[positions][:, None]
        q, k = (y * cos + torch.cat([-y[..., self.size // 2 :], y[..., : self.size // 2]], -1) * sin for y in (q, k))
        keys, values = (k, v) if past is None else (torch.cat([past[0], k], 2), torch.cat([past[1], v], 2))
        weights = torch.softmax(q @ keys.transpose(-1, -2) / self.size**0.5 + mask, -1)
        mixed = (weights @ values).transpose(1, 2).reshape(rows, length, width)
        x = x + functional.linear(mixed, attention.o_proj.weight)
        h = functional.rms_norm(x, (width,), layer.post_attention_layernorm.weight, self.eps)
        up = functional.silu(functional.linear(h, mlp.gate_proj.weight)) * functional.linear(h, mlp.up_proj.weight)
        return x + functional.linear(up, mlp.down_proj.weight), k, v


class _State:
    """Keys and values of the prompts, and of the nodes' own tokens so far."""

    def __init__(self, logits: Tensor, cache: list[tuple[Tensor, Tensor]], lengths: Tensor, width: int) -> None:
        self.logits, self.prompt, self.lengths = logits, cache, lengths
        self.row = torch.arange(len(lengths))  # (M,) prompt of each node
        self.outside = torch.where(torch.arange(width)[None, :] < lengths[:, None], 0.0, -1e9)  # (P, W)
        self.own: list[tuple[Tensor, Tensor]] | None = None
        self.depth = 0

    def extend(self, policy: TreePolicy, parent: Tensor, token: Tensor) -> Tensor:
        """Logits (M, V) of the children (parent node, token)."""
        self.row = self.row[parent]
        positions = (self.lengths[self.row] + self.depth)[:, None]
        past_mask = torch.cat([self.outside[self.row], torch.zeros(len(parent), self.depth + 1)], 1)[:, None, None, :]
        x, own = policy.model.model.embed_tokens.weight[token][:, None], []
        for index, layer in enumerate(policy.model.model.layers):
            past = [part[self.row] for part in self.prompt[index]]
            before = None if self.own is None else [part[parent] for part in self.own[index]]
            if before is not None:
                past = [torch.cat([a, b], 2) for a, b in zip(past, before, strict=True)]
            x, k, v = policy._layer(layer, x, positions, past, past_mask)
            own.append((k, v) if before is None else (torch.cat([before[0], k], 2), torch.cat([before[1], v], 2)))
        self.own, self.depth = own, self.depth + 1
        return policy._logits(x[:, 0])
