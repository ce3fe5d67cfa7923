"""docs/integrations/verl.md: its launch command passes the checks, and verl's configuration has every key of it."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any

import pytest
import yaml

from viprl.integrations.verl.checks import OWN_ESTIMATORS, VERL_ESTIMATORS, check_config

PAGE = (Path(__file__).resolve().parents[3] / "docs" / "integrations" / "verl.md").read_text(encoding="utf-8")
SECTION = PAGE.partition("## A complete launch")[2].partition("\n## ")[0]
COMMAND = SECTION.partition("```bash\n")[2].partition("```")[0]


def overrides() -> list[str]:
    words = shlex.split(COMMAND.replace("\\\n", " "))
    assert words[:3] == ["python", "-m", "verl.trainer.main_ppo"]
    return words[3:]


def nested(*changes: str) -> dict[str, Any]:
    config: dict[str, Any] = {}
    for override in (*overrides(), *changes):
        path, _, value = override.removeprefix("+").partition("=")
        *parents, last = path.split(".")
        node = config
        for parent in parents:
            node = node.setdefault(parent, {})
        node[last] = yaml.safe_load(value)
    return config


def test_the_command_passes_and_spends_what_the_page_says() -> None:
    run = check_config(nested())
    assert (run.settings.estimator, run.equal_weights) == ("grpo", True)
    assert (run.budget.prompts, run.budget.rollouts, run.budget.multiple) == (512, 4096, 1024)
    assert check_config(nested("+viprl.budget=3072")).budget.rollouts == 3072
    assert check_config(nested('+viprl.success_reward="acc>=0.5"')).settings.success_function == "acc"
    with pytest.raises(ValueError, match="nearest: 2048 or 3072"):
        check_config(nested("+viprl.budget=3000"))


def test_the_table_of_estimators() -> None:
    rows = re.findall(r"^\| `([a-z]+)`(.*?) \| `(viprl_[a-z_]+)` \|", SECTION, re.M)
    assert len(rows) == 3
    for verls, condition, ours in rows:
        name = "dr_grpo" if "norm_adv_by_std_in_grpo=False" in condition else VERL_ESTIMATORS[verls]
        assert OWN_ESTIMATORS[ours] == name


def test_verls_configuration_has_every_key() -> None:
    pytest.importorskip("verl.protocol")
    from hydra import compose, initialize_config_module

    with initialize_config_module("verl.trainer.config", version_base=None):
        found = compose("ppo_trainer", overrides=[*overrides(), '+viprl.success_reward="acc>=0.5"'])
        assert found.viprl.success_reward == "acc>=0.5" and found.actor_rollout_ref.rollout.n == 8
        lora = ["actor_rollout_ref.model.lora_rank=32", "actor_rollout_ref.model.lora_alpha=32"]
        assert (
            compose(
                "ppo_trainer", overrides=[*lora, "reward.reward_model.enable=True"]
            ).actor_rollout_ref.model.lora_rank
            == 32
        )
