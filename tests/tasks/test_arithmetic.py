# ruff: noqa: E402  (optional packages are asked for first)
"""Arithmetic: disjoint and stable prompts, exact rewards, the cached warm start."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("datasets")
torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from viprl.errors import ConfigurationError, InvalidInputError
from viprl.tasks import ArithmeticTask, MathTask, evaluate_heldout, make_task
from viprl.tasks.additions import draw_additions, is_held_out
from viprl.tasks.tiny_model import build_tiny_llama, build_tokenizer
from viprl.tasks.warm_start import WarmStart, cached_warm_start, encode, teacher_answers

SHORT = WarmStart(layers=1, hidden=16, additions=50, clean_steps=3, teacher_steps=2, batch_size=8)


def test_training_and_held_out_prompts_are_disjoint_and_the_same_every_time():
    task = ArithmeticTask(train_size=300, test_size=200)
    train, test = task.train_dataset(), task.test_dataset()
    assert len(set(train["prompt_id"])) == 300 and len(set(test["prompt_id"])) == 200
    assert not set(train["prompt"]) & set(test["prompt"])
    assert train["prompt"] == ArithmeticTask(train_size=300, test_size=200).train_dataset()["prompt"]
    assert train["prompt"] != ArithmeticTask(train_size=300, test_size=200, seed=1).train_dataset()["prompt"]


def test_the_warm_start_never_sees_a_held_out_addition():
    taught = draw_additions(8000, seed=1_000_003, held_out=False)
    assert not any(is_held_out(addition) for addition in taught)
    assert all(is_held_out(addition) for addition in draw_additions(500, seed=0, held_out=True))


def test_held_out_additions_are_about_a_tenth():
    share = sum(is_held_out((a, b)) for a in range(100) for b in range(100)) / 10_000
    assert share == pytest.approx(0.1, abs=0.02)


def test_reward_is_exact_and_takes_chat_messages():
    task = ArithmeticTask(train_size=4, test_size=4)
    completions = ["12", "12 ", "", "012", [{"role": "assistant", "content": "12"}]]
    assert task.reward(["5+7="] * 5, completions, answer=["12"] * 5) == [1.0, 0.0, 0.0, 0.0, 1.0]


def test_answers_are_the_sums():
    for row in ArithmeticTask(train_size=50, test_size=5).train_dataset():
        a, b = row["prompt"].rstrip("=").split("+")
        assert int(row["answer"]) == int(a) + int(b) and row["prompt_id"] == f"{a}+{b}"


@pytest.mark.parametrize("size", [0, -1, 2.5, True])
def test_sizes_must_be_positive_integers(size):
    with pytest.raises(InvalidInputError, match="train_size"):
        ArithmeticTask(train_size=size)


def test_the_teacher_errs_more_for_larger_last_digits():
    def error_rate(digit: int) -> float:
        pairs = teacher_answers([(50, 10 + digit)] * 2000, seed=0)
        return sum(answer != str(60 + digit) for _, answer in pairs) / 2000

    assert error_rate(0) == pytest.approx(0.05, abs=0.02)
    assert error_rate(9) == pytest.approx(0.90, abs=0.03)


def test_tokenizer_round_trip_and_model_size():
    tokenizer = build_tokenizer()
    ids = tokenizer("123+45=")["input_ids"]
    assert len(ids) == 7 and tokenizer.decode(ids) == "123+45="
    assert build_tiny_llama(tokenizer).num_parameters() == 789_248


def test_encoding_trains_on_the_answer_and_the_end_alone():
    tokenizer = build_tokenizer()
    inputs, mask, labels = encode(tokenizer, [("1+2=", "3"), ("10+20=", "30")])
    assert inputs.shape == (2, 9) and mask.sum(1).tolist() == [6, 9]
    assert tokenizer.decode(labels[0][labels[0] >= 0]) == "3<eos>"
    assert tokenizer.decode(inputs[1]) == "10+20=30<eos>"


def test_warm_start_is_built_once_and_read_back(tmp_path: Path):
    seen: list[int] = []
    model, tokenizer = cached_warm_start(tmp_path, recipe=SHORT)
    again, _ = cached_warm_start(tmp_path, recipe=SHORT, log=lambda step, steps, loss: seen.append(step))
    assert not seen and tokenizer.decode(tokenizer("1+2=")["input_ids"]) == "1+2="
    for left, right in zip(model.parameters(), again.parameters(), strict=True):
        assert torch.equal(left, right)
    assert WarmStart(seed=1).fingerprint() != WarmStart().fingerprint()


def test_a_damaged_cache_entry_is_replaced(tmp_path: Path):
    folder = tmp_path / "arithmetic-warm-start" / SHORT.fingerprint()
    folder.mkdir(parents=True)
    (folder / "config.json").write_text("half a file")
    cached_warm_start(tmp_path, recipe=SHORT)
    assert (folder / "recipe.json").exists()


def test_evaluation_counts_successes_and_leaves_the_random_state_alone():
    tokenizer = build_tokenizer()
    model = build_tiny_llama(tokenizer, layers=1, hidden=16)
    task = ArithmeticTask(train_size=4, test_size=6)
    before = torch.random.get_rng_state()
    model.train()
    found = evaluate_heldout(model, tokenizer, task, samples=3, batch_size=5)
    assert torch.equal(before, torch.random.get_rng_state()) and model.training
    assert found.prompt_ids == tuple(task.test_dataset()["prompt_id"])
    assert found.sampled.shape == found.greedy.shape == (6,) and found.sampled_rate < 1
    same = evaluate_heldout(model, tokenizer, task, samples=3, batch_size=5)
    assert (found.sampled == same.sampled).all()


def test_evaluation_grades_with_the_rows_own_answers():
    class EveryAnswerIsRight(ArithmeticTask):
        def reward(self, prompts, completions, **columns):
            assert len(prompts) == len(completions) == len(columns["answer"]) == len(columns["prompt_id"])
            sums = [eval(prompt.rstrip("=")) for prompt in prompts]
            return [None if int(a) % 2 else float(str(s) == a) for s, a in zip(sums, columns["answer"], strict=True)]

    tokenizer = build_tokenizer()
    model = build_tiny_llama(tokenizer, layers=1, hidden=16)
    task = EveryAnswerIsRight(train_size=4, test_size=12)
    found = evaluate_heldout(model, tokenizer, task, samples=2, batch_size=7)
    odd = [int(a) % 2 == 1 for a in task.test_dataset()["answer"]]
    assert [bool(x) for x in (found.sampled != found.sampled)] == odd  # NaN exactly where every reward is missing
    assert found.sampled_rate == found.greedy_rate == 1.0


def test_make_task_states_the_rule():
    assert isinstance(make_task("arithmetic", train_size=4), ArithmeticTask)
    with pytest.raises(ConfigurationError, match="must be one of arithmetic, math, reasoning_gym"):
        make_task("arithmetics")
    with pytest.raises(
        ConfigurationError, match="takes the settings train_size, test_size, too_hard, seed, warm_start, but got 'size'"
    ):
        make_task("arithmetic", size=3)
    with pytest.raises(ConfigurationError, match="needs the settings .* 'train'"):
        make_task("math")
    with pytest.raises(InvalidInputError, match="takes the settings layers, hidden"):
        make_task("arithmetic", warm_start={"step": 3})
    assert MathTask.name == "math"


def test_a_share_of_the_training_prompts_may_be_beyond_the_model() -> None:
    task = make_task("arithmetic", train_size=200, too_hard=0.6)
    prompts = task.train_dataset()["prompt"]
    hard = [len(p) == 12 for p in prompts]
    assert len(set(prompts)) == 200 and sum(hard) == 120 and 20 < sum(hard[:60]) < 50
    assert list(prompts) == list(make_task("arithmetic", train_size=200, too_hard=0.6).train_dataset()["prompt"])
    assert all(len(p) <= 8 for p in task.test_dataset()["prompt"])
    with pytest.raises(InvalidInputError, match="0 <= too_hard < 1"):
        make_task("arithmetic", too_hard=1.0)
