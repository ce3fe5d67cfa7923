"""Streams, conversations, and what a data set may look like."""

from __future__ import annotations

import shutil

import pytest

pytest.importorskip("trl")
import tiny
import torch
from datasets import Dataset
from trl_runs import Fixed, Recorder, expected_advantages, gold_of, make

from viprl import DiscountedBeta
from viprl.errors import ConfigurationError
from viprl.integrations.trl import AdaptiveRLOOConfig, AdaptiveRLOOTrainer
from viprl.prompts.ids import content_hash


@pytest.mark.parametrize("kind", ["dr_grpo", "rloo"])
def test_stream_by_hand(kind, tmp_path):
    """An IterableDataset: rows are gathered, not indices; ids come from the text."""
    data = tiny.dataset()
    trainer = make(kind, tmp_path, train_dataset=data.to_iterable_dataset(), predictor=DiscountedBeta(), max_steps=3)
    trainer.allocator.policy = Fixed(9, 2, 5, 3, 3, 2)
    record = Recorder(trainer)
    trainer.train()
    for rows, step in zip(record.batches, record.steps, strict=True):
        expected = expected_advantages(rows, gold_of(data), trainer.args.estimator)
        assert [a for _, _, a in rows] == pytest.approx(expected, abs=1e-6)
        assert [content_hash(p) for p in dict.fromkeys(p for p, _, _ in rows)] == list(step.prompt_ids)


def test_stream_with_an_id_column(tmp_path):
    trainer = make(
        "rloo", tmp_path, train_dataset=tiny.dataset().to_iterable_dataset(), predictor=DiscountedBeta(),
        prompt_id_column="key", max_steps=1,
    )  # fmt: skip
    trainer.train()
    assert set(trainer.last_step.prompt_ids) <= {f"p{i}" for i in range(16)}


def test_stream_takes_what_can_meet_new_prompts(tmp_path):
    stream = tiny.dataset().to_iterable_dataset()

    def build(**options):
        config = AdaptiveRLOOConfig(**tiny.arguments(tmp_path, **options))
        return AdaptiveRLOOTrainer(tiny.model(), tiny.reward, config, stream, processing_class=tiny.tokenizer())

    gp = {"predictor": "gaussian_process", "embedding_model": "packaged"}
    for options in (gp, {"embedding_model": "packaged"}, {"side_information": ["gold"]}):
        with pytest.raises(ConfigurationError, match=r"stream.*discounted_beta"):
            build(**options)
    trainer = build()
    trainer.train()
    assert type(trainer.allocator.predictor).__name__ == "CalibratedPredictor" and trainer.allocator.step == 2


@pytest.mark.parametrize("at", [1, pytest.param(2, marks=pytest.mark.slow), 3])
def test_stream_resumes(at, tmp_path):
    """Inside the first epoch and in the second: the buffered shuffle is brought to its epoch, the stream wound on."""
    options = {"max_steps": 4, "save_strategy": "steps", "save_steps": 1}

    def build(folder, **changed):
        trainer = make(
            "rloo", folder, train_dataset=tiny.dataset().to_iterable_dataset(), predictor=DiscountedBeta(),
            **{**options, **changed},
        )  # fmt: skip
        trainer.allocator.policy = Fixed(9, 2, 5, 3, 3, 2)
        return trainer

    first = build(tmp_path / "a")
    record = Recorder(first)
    first.train()
    assert len(record.steps) == 4
    shutil.copytree(tmp_path / "a" / f"checkpoint-{at}", tmp_path / "b" / f"checkpoint-{at}")
    second = build(tmp_path / "b", max_steps=5)  # also when the run is made longer
    again = Recorder(second)
    second.train(resume_from_checkpoint=True)
    assert [s.prompt_ids for s in again.steps[:-1]] == [s.prompt_ids for s in record.steps[at:]]
    assert again.batches[:-1] == record.batches[at:]


TEMPLATE = "{% for m in messages %}{{ m['content'] }}{% endfor %}{% if add_generation_prompt %}> {% endif %}"


@pytest.mark.parametrize("kind", ["dr_grpo", "rloo"])
def test_conversations(kind, tmp_path):
    tokenizer = tiny.tokenizer()
    tokenizer.chat_template = TEMPLATE
    base = tiny.dataset(6)
    chats = [[{"role": "system", "content": "b"}, {"role": "user", "content": p}] for p in base["prompt"]]
    data = Dataset.from_dict({"prompt": chats, "gold": base["gold"]})

    def reward(completions, gold, **_):
        return [float(tiny.is_right(c[0]["content"], g)) for c, g in zip(completions, gold, strict=True)]

    trainer = make(
        kind, tmp_path, train_dataset=data, processing_class=tokenizer, reward_funcs=reward, max_steps=1,
        policy=Fixed(9, 2, 5, 3, 3, 2), shuffle_dataset=False,
    )  # fmt: skip
    trainer.train()
    assert trainer.last_step.prompt_ids == tuple(content_hash(chat) for chat in chats)
    assert trainer.last_step.group_sizes.tolist() == [9, 2, 5, 3, 3, 2]


@pytest.mark.parametrize("remove", [True, False])
def test_unused_columns(remove, tmp_path):
    """With remove_unused_columns TRL drops everything but the prompt; ids must survive it."""
    data = tiny.dataset().add_column("index", list(range(16))).add_column("data_source", ["tiny"] * 16)
    trainer = make(
        "rloo", tmp_path, train_dataset=data, remove_unused_columns=remove, max_steps=1,
        reward_funcs=lambda completions, **_: [float(len(c) > 2) for c in completions],
    )  # fmt: skip
    trainer.train()
    assert all(i.startswith("tiny/") for i in trainer.last_step.prompt_ids)


def test_extra_info_names_the_prompts(tmp_path):
    data = tiny.dataset().map(lambda row, i: {"extra_info": {"prompt_id": f"x{i}"}}, with_indices=True)
    trainer = make("rloo", tmp_path, train_dataset=data, max_steps=1)
    trainer.train()
    assert all(i.startswith("x") for i in trainer.last_step.prompt_ids)


def test_a_sampler_that_breaks_the_groups_is_noticed(tmp_path):
    trainer = make("rloo", tmp_path, max_steps=1)
    trainer._get_train_sampler = lambda dataset=None: torch.utils.data.SequentialSampler(dataset)
    with pytest.raises(ConfigurationError, match="RepeatSampler"):
        trainer.train()


def test_reward_functions_cannot_reach_other_rows(tmp_path):
    """Rows of a prompt are copies: changing one changes no other."""

    def reward(completions, tags, **_):
        for tag in tags:
            tag.append("seen")
        assert all(len(tag) == 2 for tag in tags)
        return [float(len(c) > 2) for c in completions]

    data = tiny.dataset().add_column("tags", [["a"]] * 16)
    make("rloo", tmp_path, train_dataset=data, reward_funcs=reward, max_steps=2).train()


def test_rows_made_by_a_transform(tmp_path):
    """``set_transform``: no prompt is stored, yet every row has one; ids are those of the rows that are made."""
    stored = tiny.dataset()
    texts = dict(enumerate(stored["prompt"]))
    data = Dataset.from_dict({"at": list(texts), "key": stored["key"], "gold": stored["gold"]})
    data.set_transform(lambda rows: {**rows, "prompt": [texts[at] for at in rows["at"]]})
    for column, known in ((None, {content_hash(text) for text in texts.values()}), ("key", set(stored["key"]))):
        trainer = make("rloo", tmp_path / str(column), train_dataset=data, prompt_id_column=column, max_steps=2)
        record = Recorder(trainer)
        trainer.train()
        assert trainer.allocator.step == 2 and set(trainer.last_step.prompt_ids) <= known
        rows = [row for batch in record.batches for row in batch]
        assert rows and {prompt for prompt, _, _ in rows} <= set(texts.values())
