"""The gradient of the loss is the mean over prompts of per-prompt gradients, however uneven the groups.

The reference is plain torch on the decoded rollouts: log-probabilities from a softmax of the logits, one backward pass
per prompt, no code of TRL's loss.
"""

from __future__ import annotations

import copy

import pytest

pytest.importorskip("trl")
import tiny
import torch
from trl_runs import Fixed, Gradients, Recorder, expected_advantages, gold_of, make

from viprl.errors import ConfigurationError
from viprl.integrations.trl.weights import LOSSES

SIZES = (14, 2, 2, 2, 2, 2)


def run(kind, tmp_path, sizes=SIZES, **options):
    gradients = Gradients()
    trainer = make(
        kind,
        tmp_path,
        policy=Fixed(*sizes),
        callbacks=[gradients],
        max_steps=1,
        max_grad_norm=0.0,
        temperature=0.8,
        **options,
    )
    before = copy.deepcopy(trainer.model.state_dict())
    record = Recorder(trainer)
    kept = []
    inner = trainer._generate_and_score_completions

    def keep(inputs):
        kept.append(inner(inputs))
        return kept[-1]

    trainer._generate_and_score_completions = keep
    trainer.train()
    rows = record.batches[0]
    estimator = trainer.args.estimator
    plain = expected_advantages(rows, gold_of(trainer.train_dataset), estimator, equal=False)
    taken = gradients.taken[0]
    return taken, per_prompt_mean(before, [kept[0]], plain, rows, getattr(trainer, "loss_type", "rloo"))


def per_prompt_mean(weights, outputs, advantages, rows, loss):
    """(1/B) sum over prompts of (1/n_q) sum over rollouts of A grad(log-probability, aggregated over tokens).

    ``outputs`` holds the token ids of every process, in order; ``rows`` and ``advantages`` are of all of them.
    """
    model = tiny.model()
    model.load_state_dict(weights)
    parts = [_log_probabilities(model, output) for output in outputs]
    sums, tokens = (torch.cat(values) for values in zip(*parts, strict=True))
    per_rollout = {
        "grpo": sums / tokens,
        "sapo": sums / tokens,
        "dr_grpo": sums / tiny.MAX_NEW_TOKENS,
        "luspo": sums,
        "rloo": sums,
    }.get(loss, sums * len(rows) / tokens.sum())  # dapo, cispo, vespo, bnpo: tokens of the whole batch
    groups: dict[str, list[int]] = {}
    for i, (prompt, _, _) in enumerate(rows):
        groups.setdefault(prompt, []).append(i)
    total: dict[str, torch.Tensor] = {}
    for members in groups.values():
        model.zero_grad()
        mean = -sum(advantages[i] * per_rollout[i] for i in members) / len(members)
        mean.backward(retain_graph=True)
        for name, p in model.named_parameters():
            total[name] = total.get(name, 0) + p.grad / len(groups)
    return total


def _log_probabilities(model, output):
    ids = torch.cat([output["prompt_ids"], output["completion_ids"]], 1)
    mask = torch.cat([output["prompt_mask"], output["completion_mask"]], 1)
    length = output["completion_ids"].size(1)
    positions = (mask.cumsum(1) - 1).clamp(min=0)
    logits = model(input_ids=ids, attention_mask=mask, position_ids=positions).logits[:, -length - 1 : -1] / 0.8
    logps = torch.log_softmax(logits, -1).gather(-1, output["completion_ids"][..., None])[..., 0]
    keep = output["completion_mask"].float()
    return (logps * keep).sum(1), keep.sum(1)


def difference(got, expected):
    scale = max(float(g.abs().max()) for g in expected.values())
    assert scale > 1e-3
    return max(float((got[name] - expected[name]).abs().max()) for name in expected) / max(scale, 1.0)


def settings(loss):
    if loss == "rloo":
        return "rloo", {}
    options = {"loss_type": loss, "scale_rewards": "none"}
    if loss == "luspo":
        options["importance_sampling_level"] = "sequence"
    if loss == "cispo":
        options["epsilon_high"] = 5.0  # CISPO's upper bound on the ratio itself
    return "grpo", options


SAFE = [name for name, row in LOSSES.items() if row.equal]


@pytest.mark.parametrize("loss", SAFE)
def test_safe_losses_weigh_prompts_equally(loss, tmp_path):
    kind, options = settings(loss)
    got, expected = run(kind, tmp_path, per_device_train_batch_size=6, gradient_accumulation_steps=4, **options)
    assert difference(got, expected) < 1e-5


@pytest.mark.parametrize(("loss", "estimator"), [("dr_grpo", "rloo"), ("dapo", "grpo"), ("grpo", "grpo")])
def test_with_other_estimators(loss, estimator, tmp_path):
    scale = "group" if estimator == "grpo" else "none"
    got, expected = run("grpo", tmp_path, loss_type=loss, scale_rewards=scale, estimator=estimator)
    assert difference(got, expected) < 1e-5


def test_bnpo_in_one_micro_batch(tmp_path):
    got, expected = run("grpo", tmp_path, loss_type="bnpo", scale_rewards="none")
    assert difference(got, expected) < 1e-5


@pytest.mark.parametrize(
    "options",
    [
        {"per_device_train_batch_size": 12, "gradient_accumulation_steps": 2},
        {"per_device_train_batch_size": 12, "steps_per_generation": 2},
    ],
)
def test_bnpo_in_several_micro_batches_is_refused(options, tmp_path):
    with pytest.raises(ConfigurationError, match="bnpo"):
        make("grpo", tmp_path, loss_type="bnpo", scale_rewards="none", **options)
    make("grpo", tmp_path, loss_type="bnpo", scale_rewards="none", prompt_weighting="rollout", **options)


@pytest.mark.parametrize("loss", ["rloo", "dapo"])
def test_rollout_weighting_does_not(loss, tmp_path):
    """The test above can fail: without the factor a prompt weighs as its rollouts."""
    kind, options = settings(loss)
    got, expected = run(kind, tmp_path, prompt_weighting="rollout", **options)
    assert difference(got, expected) > 1e-3


def test_group_of_one_and_largest_group(tmp_path):
    got, expected = run("rloo", tmp_path, sizes=(1, 1, 1, 1, 6, 14), min_group_size=1)
    assert difference(got, expected) < 1e-5


@pytest.mark.slow
@pytest.mark.parametrize("loss", SAFE)
def test_off_policy_rows_weigh_equally_too(loss, tmp_path):
    """Second pass over a window (ratio != 1, with clipping): TRL's own loss on one prompt's rows at a time.

    A loss is positively homogeneous in the advantage, so the loss on all rows with weighted advantages must be the mean
    over prompts of the loss on a prompt's rows with plain ones.
    """
    kind, options = settings(loss)
    trainer = make(kind, tmp_path, policy=Fixed(*SIZES), num_iterations=2, max_steps=2, learning_rate=3e-2, **options)
    record = Recorder(trainer)
    checked = []
    loss_fn = trainer._compute_loss

    def compare(model, inputs):
        value = loss_fn(model, inputs)
        if trainer.state.global_step == 1:
            checked.append(_compare(trainer, loss_fn, model, inputs, value, record, loss))
        return value

    trainer._compute_loss = compare
    trainer.train()
    assert checked == [True]


def _compare(trainer, loss_fn, model, inputs, value, record, loss):
    names = [p for p in model.parameters() if p.requires_grad]
    got = torch.autograd.grad(value, names, retain_graph=True)
    rows = record._rows(inputs)
    plain = expected_advantages(rows, gold_of(trainer.train_dataset), trainer.args.estimator, equal=False)
    groups: dict[str, list[int]] = {}
    for i, (prompt, _, _) in enumerate(rows):
        groups.setdefault(prompt, []).append(i)
    assert sorted(map(len, groups.values())) == sorted(SIZES)
    expected = [torch.zeros_like(p) for p in names]
    for members in groups.values():
        part = {k: v[members] if torch.is_tensor(v) and v.ndim else v for k, v in inputs.items()}
        part["advantages"] = torch.tensor([plain[i] for i in members])
        if loss in ("dapo", "cispo", "vespo"):  # the divisor is the batch's tokens, per rollout
            part["num_items_in_batch"] = inputs["num_items_in_batch"] * len(members) / len(rows)
        for total, g in zip(expected, torch.autograd.grad(loss_fn(model, part), names), strict=True):
            total += g / len(groups)
    scale = max(float(e.abs().max()) for e in expected)
    assert scale > 1e-3
    error = max(float((g - e).abs().max()) for g, e in zip(got, expected, strict=True))
    return error / max(scale, 1.0) < 1e-5
