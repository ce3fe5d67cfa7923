"""Per-rollout policy gradients of a Transformers model, compressed on the fly into a pool."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from viprl.errors import ConfigurationError, InvalidInputError
from viprl.gradient.capture import GradientCapture, LayerFilter
from viprl.gradient.consumers import SketchSum, WholeGradients
from viprl.gradient.pool import PromptPool
from viprl.gradient.proxies import proxies
from viprl.gradient.rollouts import PromptRollouts, Reward, log_probabilities, sample
from viprl.gradient.sketch import DEFAULT_SIZE, CountSketch

Progress = Callable[[int, int], None]


class GradientMeter:
    """Gradients of the summed log-probability of completions, as sketches (C, S) or whole (C, P).

    Args:
        model: a causal language model; left as it was after every call.
        sketch_size: S; None keeps whole gradients, for models of a few million parameters.
        layers: restrict the gradient to the modules for which ``layers(name, module)`` holds.
        batch_rows: completions in one backward pass.
        seed: of the sketch.

    Raises:
        ConfigurationError: no supported layer. ``unsupported`` lists trainable parameters left out of the gradient.
    """

    def __init__(
        self,
        model: Any,
        *,
        sketch_size: int | None = DEFAULT_SIZE,
        layers: LayerFilter | None = None,
        batch_rows: int = 16,
        seed: int = 0,
    ) -> None:
        self.model = model
        self.batch_rows = batch_rows
        self._capture = GradientCapture(model, lambda name, uses: None, layers=layers)
        self.unsupported = self._capture.unsupported
        shapes = self._capture.shapes
        self._consumer: SketchSum | WholeGradients
        if sketch_size is None:
            self._consumer = WholeGradients(shapes)
        else:
            self._consumer = SketchSum(CountSketch(shapes, size=sketch_size, seed=seed, device=str(model.device)))
        self._capture.consumer = self._consumer

    def gradients(self, prompt: list[int], completions: Sequence[list[int]]) -> tuple[Tensor, dict[str, Tensor]]:
        """Gradients of completions of one prompt, and their cheap proxies (C,)."""
        if not completions:
            raise InvalidInputError("at least one completion is needed")
        order = sorted(range(len(completions)), key=lambda i: len(completions[i]))
        parts, cheap = [], []
        with _frozen(self.model), self._capture:
            for start in range(0, len(order), self.batch_rows):
                own = [completions[i] for i in order[start : start + self.batch_rows]]
                self._capture.start()
                self._consumer.reset()
                chosen, every, mask = log_probabilities(self.model, prompt, own)
                chosen.sum().backward()  # type: ignore[no-untyped-call]
                self._capture.finish()
                if self._capture.incomplete:
                    raise ConfigurationError(
                        "every use of a parameter must go through its module, but the model has other uses of "
                        + ", ".join(self._capture.incomplete)
                    )
                parts.append(self._consumer.total())
                cheap.append(proxies(chosen.detach(), every.detach(), mask))
        back = torch.tensor(order).argsort()
        return torch.cat(parts)[back], {n: torch.cat([c[n] for c in cheap])[back] for n in cheap[0]}

    def pool(self, prompt_id: str, rollouts: PromptRollouts) -> PromptPool:
        """The pool of one prompt's rollouts."""
        gradients, cheap = self.gradients(rollouts.prompt, rollouts.unique)
        gradients = gradients.double()
        index = np.array(rollouts.index)
        gram = (gradients @ gradients.T).cpu().numpy()
        return PromptPool(
            prompt_id,
            np.array(rollouts.rewards, dtype=np.float64),
            gram[np.ix_(index, index)],
            np.array(rollouts.lengths(), dtype=np.float64),
            {name: values.double().cpu().numpy()[index] for name, values in cheap.items()},
        )


def measure(
    model: Any,
    tokenizer: Any,
    prompts: Sequence[Any],
    prompt_ids: Sequence[str],
    reward: Reward,
    *,
    rollouts: int,
    max_new_tokens: int,
    skip_dead: bool = False,
    progress: Progress | None = None,
    meter: GradientMeter | None = None,
    generate_rows: int = 64,
    **meter_options: Any,
) -> Iterator[PromptPool]:
    """Pools of all prompts, one prompt after the other (set torch's seed for reproducible rollouts).

    Args:
        reward: (position of the prompt, texts of its completions) -> rewards.
        skip_dead: leave out prompts whose rewards are all equal; their estimated variance is zero.
        meter: a ready GradientMeter, else one is built from ``meter_options``.
    """
    if len(prompts) != len(prompt_ids):
        raise InvalidInputError(f"one id per prompt is needed, but got {len(prompt_ids)} for {len(prompts)}")
    was_training = model.training
    model.eval()
    meter = meter or GradientMeter(model, **meter_options)
    try:
        for q, prompt in enumerate(prompts):

            def own_reward(_: int, texts: list[str], q: int = q) -> Sequence[float]:
                return reward(q, texts)

            options = {"rollouts": rollouts, "max_new_tokens": max_new_tokens, "batch_rows": generate_rows}
            drawn = sample(model, tokenizer, [prompt], own_reward, **options)[0]
            if not (skip_dead and len(set(drawn.rewards)) == 1):
                yield meter.pool(str(prompt_ids[q]), drawn)
            if progress is not None:
                progress(q + 1, len(prompts))
    finally:
        model.train(was_training)


@contextmanager
def _frozen(model: nn.Module) -> Iterator[None]:
    """Parameters without gradients of their own: only activations are differentiated, a third of the work less."""
    trainable = [p for p in model.parameters() if p.requires_grad]
    embedding = model.get_input_embeddings()  # type: ignore[operator]
    # with frozen weights nothing would need a gradient, so the embedded tokens ask for one
    handle = embedding.register_forward_hook(lambda module, args, output: output.requires_grad_(True))
    for parameter in trainable:
        parameter.requires_grad_(False)
    try:
        with torch.enable_grad():
            yield
    finally:
        handle.remove()
        for parameter in trainable:
            parameter.requires_grad_(True)
