"""``candidates`` in TRL: rows beyond the batch, streams, small data sets, several processes, resume, weights."""

from __future__ import annotations

import copy
import shutil

import numpy as np
import pytest

pytest.importorskip("trl")
import tiny
import torch
from test_trl_gradient import difference, per_prompt_mean
from test_trl_resume import RUN, history, told
from trl_runs import Gradients, Recorder, expected_advantages, gold_of, make, parameters

from viprl import VIP, DiscountedBeta, RolloutAllocator, Uniform
from viprl.errors import CheckpointError, ConfigurationError
from viprl.integrations.trl.candidates import Cursor, Pool

FOUR = {"candidates": 4, "prompt_id_column": "key"}  # of 6 prompts a batch: 24 candidates
DATA = 60


def select(kind, folder, **options):
    options = {"train_dataset": tiny.dataset(DATA), "policy": VIP(), **FOUR, **options}
    return make(kind, folder, **options)


class TestPool:
    def test_a_pass_has_no_row_twice_and_leaves_none_out(self):
        pool, seen = Pool([f"p{i}" for i in range(50)], seed=3), []
        while pool.cursor.turn == 0 and pool.cursor.position < 50:
            rows, pool.cursor = pool.offer((), 10)
            seen += rows
        assert sorted(seen) == list(range(50)) and seen != sorted(seen)
        second, _ = pool.offer((), 50)
        assert sorted(second) == list(range(50)) and second != seen

    def test_what_the_batch_has_is_passed_over(self):
        pool = Pool([f"p{i // 2}" for i in range(20)], seed=0)  # every prompt in two rows
        rows, cursor = pool.offer(["p0", "p1", "p2"], 100)
        assert sorted(pool.row_ids[row] for row in rows) == [f"p{i}" for i in range(3, 10)]
        assert cursor == Cursor(0, 20) and pool.cursor == Cursor(0, 0)

    def test_goes_on_from_its_state(self):
        pool = Pool([f"p{i}" for i in range(30)], seed=5)
        for _ in range(4):
            _, pool.cursor = pool.offer(["p1"], 9)
        other = Pool(pool.row_ids, seed=5)
        other.load_state_dict(pool.state_dict())
        assert other.offer(["p2"], 9) == pool.offer(["p2"], 9)
        longer = Pool([f"p{i}" for i in range(31)], seed=5)
        longer.load_state_dict(pool.state_dict())
        assert longer.cursor == Cursor(pool.cursor.turn + 1, 0)

    def test_another_seed_is_another_order(self):
        ids = [f"p{i}" for i in range(30)]
        assert Pool(ids, seed=1).offer((), 9) != Pool(ids, seed=2).offer((), 9)


@pytest.mark.parametrize("kind", ["dr_grpo", "rloo", "grpo"])
def test_by_hand(kind, tmp_path):
    """Kept rows come with their own columns (the reward reads ``gold``), and the budget is exact."""
    trainer = select(kind, tmp_path, max_steps=4)
    data = trainer.train_dataset
    key_of = dict(zip(data["prompt"], data["key"], strict=True))
    record = Recorder(trainer)
    trainer.train()
    beyond = 0
    for rows, step in zip(record.batches, record.steps, strict=True):
        assert len(rows) == 24 == step.group_sizes.sum() and step.group_sizes.min() >= 2
        assert [key_of[p] for p, _, _ in rows] == np.repeat(step.prompt_ids, step.group_sizes).tolist()
        expected = expected_advantages(rows, gold_of(data), trainer.args.estimator)
        assert [a for _, _, a in rows] == pytest.approx(expected, abs=1e-6)
        candidates = step.plan.selected.candidate_ids
        assert len(set(candidates)) == len(candidates) == 24 and step.plan.kept.tolist() == sorted(step.plan.kept)
        beyond += int((step.plan.kept >= 6).sum())
    assert beyond > 0
    rows = history(tmp_path)
    assert {row["candidates"] for row in rows} == {24} and {row["kept_for"] for row in rows} <= {
        "value", "exploration", "rest", "uniform"
    }  # fmt: skip
    logged = [row for row in trainer.state.log_history if "viprl/kept" in row]
    assert [row["viprl/candidates"] for row in logged] == [24.0] * 4 and "viprl/price" in logged[0]
    assert [row["viprl/kept"] for row in logged] == [len(step.prompt_ids) for step in record.steps]


def test_rows_carry_all_columns(tmp_path):
    """A reward that reads other columns, and rows that no other row may change."""
    seen = []

    def reward(completions, key, tags, index, **_):
        for k, tag, i in zip(key, tags, index, strict=True):
            assert k == f"p{i}" and tag == [k]
            tag.append("seen")
        seen.extend(index)
        return [float(len(c) > 2) for c in completions]

    data = (
        tiny.dataset(DATA).add_column("tags", [[f"p{i}"] for i in range(DATA)]).add_column("index", list(range(DATA)))
    )
    select("rloo", tmp_path, train_dataset=data, reward_funcs=reward, max_steps=3).train()
    assert len(seen) == 72


def test_unused_columns_are_removed_from_all_rows_alike(tmp_path):
    data = tiny.dataset(DATA)
    trainer = select(
        "rloo", tmp_path, train_dataset=data, remove_unused_columns=True, max_steps=2,
        reward_funcs=lambda completions, **given: [float(len(c) > 2 and "gold" not in given) for c in completions],
    )  # fmt: skip
    columns = set()
    inner = trainer._row

    def row(batch, place):
        columns.add(tuple(sorted(inner(batch, place))))
        return inner(batch, place)

    trainer._row = row
    trainer.train()
    assert columns == {("key", "prompt")}


@pytest.mark.parametrize("size", [6, 16])
def test_a_data_set_smaller_than_the_candidates(size, tmp_path):
    trainer = select("rloo", tmp_path, train_dataset=tiny.dataset(size), max_steps=3)
    record = Recorder(trainer)
    trainer.train()
    for step in record.steps:
        assert sorted(step.plan.selected.candidate_ids) == sorted(f"p{i}" for i in range(size))
        assert len(set(step.prompt_ids)) == len(step.prompt_ids)


@pytest.mark.parametrize("size", [16, DATA])
def test_uniform_with_candidates_is_a_plain_control(size, tmp_path):
    """As many prompts as without selection, equal groups, TRL's own numbers."""
    options = {"policy": "uniform", "selection": "uniform", "predictor": DiscountedBeta(), "max_steps": 4}
    trainer = select("dr_grpo", tmp_path, train_dataset=tiny.dataset(size), **{**options, "policy": None})
    trainer.allocator.policy = Uniform()
    record = Recorder(trainer)
    trainer.train()
    for rows, step in zip(record.batches, record.steps, strict=True):
        assert step.group_sizes.tolist() == [4] * 6 and len(set(step.prompt_ids)) == 6
        assert not step.plan.selected.paused and (step.plan.prompt_weights == 1).all()
        assert [a for _, _, a in rows] == pytest.approx(
            expected_advantages(rows, gold_of(trainer.train_dataset), "dr_grpo"), abs=1e-6
        )


@pytest.mark.parametrize("selection", ["learnability", "unbiased"])
@pytest.mark.parametrize("kind", ["rloo", "dr_grpo"])
def test_gradient_is_the_weighted_mean_over_the_kept_prompts(kind, selection, tmp_path):
    gradients = Gradients()
    trainer = select(
        kind, tmp_path, selection=selection, callbacks=[gradients], max_steps=6, max_grad_norm=0.0, temperature=0.8,
        per_device_train_batch_size=6, gradient_accumulation_steps=4,
    )  # fmt: skip
    befores, kept = [], []
    record = Recorder(trainer)
    inner = trainer._generate_and_score_completions

    def keep(inputs):
        befores.append(copy.deepcopy(trainer.model.state_dict()))
        kept.append(inner(inputs))
        return kept[-1]

    trainer._generate_and_score_completions = keep
    trainer.train()
    uneven, weighted = False, False
    for step, taken in enumerate(gradients.taken):
        rows, plan = record.batches[step], record.steps[step].plan
        weights = np.repeat(plan.prompt_weights, plan.group_sizes)
        plain = expected_advantages(rows, gold_of(trainer.train_dataset), trainer.args.estimator, equal=False)
        weighed = [a * w for a, w in zip(plain, weights, strict=True)]
        if not any(weighed):  # a batch without any live group
            assert not any(gradient.any() for gradient in taken.values())
            continue
        loss = getattr(trainer, "loss_type", "rloo")
        expected = per_prompt_mean(befores[step], [kept[step]], weighed, rows, loss)
        assert difference(taken, expected) < 1e-5
        uneven |= len(set(plan.group_sizes.tolist())) > 1
        weighted |= bool(np.ptp(plan.prompt_weights) > 1e-3)
    assert uneven and weighted == (selection == "unbiased")


class TestStream:
    def stream(self, folder, **options):
        data = tiny.dataset(DATA).to_iterable_dataset()
        return select("rloo", folder, train_dataset=data, predictor=DiscountedBeta(), **options)

    def test_by_hand(self, tmp_path):
        trainer = self.stream(tmp_path, max_steps=4)  # 24 of 60 candidates a batch: two batches a pass
        record = Recorder(trainer)
        trainer.train()
        data = tiny.dataset(DATA)
        for rows, step in zip(record.batches, record.steps, strict=True):
            assert len(rows) == 24 and len(set(step.plan.selected.candidate_ids)) == 24
            expected = expected_advantages(rows, gold_of(data), "rloo")
            assert [a for _, _, a in rows] == pytest.approx(expected, abs=1e-6)
        offered = [set(step.plan.selected.candidate_ids) for step in record.steps]
        assert offered[0].isdisjoint(offered[1])

    @pytest.mark.parametrize("at", [1, pytest.param(2, marks=pytest.mark.slow), 3])
    def test_resumes(self, at, tmp_path):
        options = {"max_steps": 4, "save_strategy": "steps", "save_steps": 1}
        first = self.stream(tmp_path / "a", **options)
        record = Recorder(first)
        first.train()
        shutil.copytree(tmp_path / "a" / f"checkpoint-{at}", tmp_path / "b" / f"checkpoint-{at}")
        second = self.stream(tmp_path / "b", **options)
        again = Recorder(second)
        second.train(resume_from_checkpoint=True)
        assert told(again.steps) == told(record.steps[at:]) and again.batches == record.batches[at:]

    def test_candidates_that_do_not_divide_the_group(self, tmp_path):
        with pytest.raises(ConfigurationError, match=r"num_generations=4, candidates=3"):
            self.stream(tmp_path, candidates=3)


@pytest.mark.parametrize("at", [3, 8])
def test_resume_equals_the_uninterrupted_run(at, tmp_path):
    """Kept and left-out prompts, the cursor, the draws: bit for bit, inside a window and between windows."""
    options = {**RUN, "max_steps": 12, "train_dataset": tiny.dataset(30), "candidates": 3}
    first = select("rloo", tmp_path / "a", **options)
    record = Recorder(first)
    first.train()
    shutil.copytree(tmp_path / "a" / f"checkpoint-{at}", tmp_path / "b" / f"checkpoint-{at}")
    second = select("rloo", tmp_path / "b", **{**options, "save_strategy": "no"}, model=tiny.model(seed=7))
    again = Recorder(second)
    second.train(resume_from_checkpoint=True)
    generated = -(-at // 4)
    assert told(again.steps) == told(record.steps[generated:]) and again.batches == record.batches[generated:]
    offered = [
        [step.plan.selected.candidate_ids for step in steps] for steps in (again.steps, record.steps[generated:])
    ]
    assert offered[0] == offered[1] and torch.equal(parameters(second), parameters(first))
    assert second._candidates_state() == first._candidates_state() and first._pool.cursor.turn > 0


@pytest.mark.parametrize("changed", [{"candidates": 1}, {"selection": "top"}, {"exploration": 0.2}])
def test_another_selection_is_refused_on_resume(changed, tmp_path):
    options = {"max_steps": 2, "save_strategy": "steps", "save_steps": 1}
    select("rloo", tmp_path, **options).train()
    with pytest.raises(CheckpointError, match=f"choose prompts as it did before, but .*{next(iter(changed))}"):
        select("rloo", tmp_path, **{**options, **changed}).train(resume_from_checkpoint=True)


def test_an_allocator_of_ones_own_selects_as_the_config_says(tmp_path):
    """The nominal number of prompts is the trainer's, whatever the allocator was built with."""
    from viprl import RLOO
    from viprl.selection import UniformSelection

    own = RolloutAllocator(DiscountedBeta(), RLOO(), min_group_size=2, selection=UniformSelection(), candidates=9)
    trainer = select("rloo", tmp_path, policy=None, allocator=own, max_steps=1)
    trainer.train()
    assert len(trainer.last_step.prompt_ids) == 6


def test_evaluation_goes_on_as_before(tmp_path):
    trainer = select("rloo", tmp_path, eval_dataset=tiny.dataset(6, seed=5), max_steps=2, eval_strategy="steps",
                     eval_steps=1, log_completions=True)  # fmt: skip
    trainer.train()
    assert any("eval_reward" in row for row in trainer.state.log_history)
