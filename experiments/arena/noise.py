"""How signal and noise of a prompt's gradient grow with p(1-p), and the between-prompt noise rho: the value's shape.

    python noise.py --warm FOLDER [--prompts 96] [--rollouts 24]

The signal ||grad p||^2 is exact (the answer's probability is differentiable); the noise between rollouts is V1 of the
prompt's own rollouts (``viprl.gradient.moments``). Prints fits log signal, log noise ~ log p(1-p) and rho.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import numpy as np
import torch
from world import load

from viprl.gradient.moments import group_moments
from viprl.tasks.additions import draw_additions


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--warm", type=Path, required=True)
    parser.add_argument("--prompts", type=int, default=96)
    parser.add_argument("--rollouts", type=int, default=24)
    args = parser.parse_args()
    torch.set_num_threads(1)
    policy, draws = load(args.warm), torch.Generator().manual_seed(0)
    parameters = [p for p in policy.model.parameters()]
    flat = lambda loss, keep: torch.cat(  # noqa: E731
        [g.flatten() for g in torch.autograd.grad(loss, parameters, retain_graph=keep)]
    )
    rows, gradients = [], []
    for a, b in draw_additions(args.prompts, seed=3, held_out=False):
        prompt, answer = (policy.tokenizer(t)["input_ids"] for t in (f"{a}+{b}=", str(a + b)))
        chance = policy.log_probability([prompt], [answer]).exp()
        signal = flat(chance.sum(), False)
        samples = policy.sample([prompt], np.zeros(args.rollouts, np.int64), draws)
        right = [tuple(t[: len(answer) + 1]) == (*answer, policy.eos) for t in samples.tokens.tolist()]
        score = torch.stack(
            [flat(samples.weighted_log_probability(np.eye(args.rollouts)[j]), True) for j in range(args.rollouts)]
        )
        moments = group_moments(np.array(right, float), (score @ score.T).double().numpy())
        gradients.append(signal)
        p = float(chance.detach())
        rows.append((p * (1 - p), float(signal @ signal), moments.v1, moments.v2, float((score * score).sum(1).mean())))
    a, signal, v1, v2, norm = np.array(rows).T
    g = torch.stack(gradients)
    common = g.mean(0)
    unit = common / common.norm()
    along = (g @ unit).numpy()
    fine = (a > 0.002) & (v1 > 0)
    fit = lambda y: np.polyfit(np.log(a[fine]), np.log(np.maximum(y[fine], 1e-12)), 1)[0].round(2).item()  # noqa: E731
    noise = v1[fine].sum()
    print(
        json.dumps(
            {
                "prompts": len(a),
                "live": int(fine.sum()),
                "exponent of the signal along the common gradient": fit(np.abs(along)),
                "exponent of the squared signal": fit(signal),
                "exponent of the noise between rollouts": fit(v1),
                "exponent of E||H||^2": fit(norm),
                "share of the signal along the common gradient": round(float((along**2).sum() / signal.sum()), 3),
                "signal^2 / V1 (sums)": round(float(signal[fine].sum() / noise), 3),
                "rho: sum signal^2 off the common direction / a^2 against V1 / a": round(
                    float(((signal - along**2)[fine].sum() / (a[fine] ** 2).sum()) / (noise / a[fine].sum())), 3
                ),
                "V2 / V1": round(float(v2[fine].sum() / noise), 2),
                "bins of a: (a, along, signal^2 off, V1)": [
                    [round(float(x[k].mean()), 4) for x in (a, along, signal - along**2, v1)]
                    for k in np.array_split(np.argsort(a), 6)
                ],
            },
            indent=1,
        )
    )


if __name__ == "__main__":
    main()
