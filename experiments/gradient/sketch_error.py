"""Error of sketched inner products against exact gradients of the arithmetic model: ``python sketch_error.py``."""

from __future__ import annotations

import json
from pathlib import Path

import stages
import torch

from viprl.gradient.measure import GradientMeter
from viprl.gradient.rollouts import sample

RESULTS = Path(__file__).parent / "results"


def main() -> None:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model, tokenizer = stages.load("noisy")
    model.eval()
    drawn = sample(model, tokenizer, ["457+308="], lambda q, t: [0.0] * len(t), rollouts=32, max_new_tokens=6)[0]
    exact = GradientMeter(model, sketch_size=None).gradients(drawn.prompt, drawn.unique)[0].double()
    true, norms = exact @ exact.T, exact.norm(dim=1)
    found = {}
    for size in (4_096, 32_768):
        errors = []
        for seed in range(5):
            own = GradientMeter(model, sketch_size=size, seed=seed).gradients(drawn.prompt, drawn.unique)[0].double()
            errors.append((own @ own.T - true) / torch.outer(norms, norms))
        stacked = torch.stack(errors)
        found[size] = {
            "root_mean_square": float(stacked.square().mean().sqrt()),
            "of_norms": float(stacked.diagonal(dim1=1, dim2=2).square().mean().sqrt()),
            "largest": float(stacked.abs().max()),
            "gradients": len(norms),
            "parameters": exact.shape[1],
        }
        print(size, found[size], flush=True)
    (RESULTS / "sketch_error.json").write_text(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
