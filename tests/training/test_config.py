"""Configuration: overrides, nearest keys, rules."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("trl")

from viprl._yaml import parse_value
from viprl.errors import ConfigurationError
from viprl.gradient.job import load_gradient_config
from viprl.tasks import ArithmeticTask
from viprl.training import load_config
from viprl.training.arguments import load_reward, trainer_arguments

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"


def test_overrides_of_three_forms_reach_inside(write_config):
    config = load_config(
        write_config(),
        ["steps=7", "--policy=uniform", "--seeds", "[1, 2]", "trainer.learning_rate=1e-4", "task.train_size=64"],
    )
    assert config.steps == 7 and config.policy == "uniform" and list(config.seeds) == [1, 2]
    assert config.trainer["learning_rate"] == 1e-4 and config.task_settings["train_size"] == 64


def test_overrides_leave_the_file_and_other_settings_alone(write_config):
    path = write_config()
    before = path.read_text()
    load_config(path, ["trainer.learning_rate=5e-5", "task.seed=3"])
    assert path.read_text() == before
    assert load_config(path, ["trainer.learning_rate=5e-5"]).trainer["save_steps"] == 2


@pytest.mark.parametrize(
    ("text", "value"),
    [("1e-4", 1e-4), ("3", 3), ("true", True), ("null", None), ("[1,2]", [1, 2]), ("", ""), ("e5", "e5")],
)
def test_values_are_yaml_and_numbers_are_numbers(text, value):
    assert parse_value(text) == value and type(parse_value(text)) is type(value)


def test_a_task_name_alone_takes_settings_by_override(write_config):
    config = load_config(write_config(task="arithmetic"), ["task.train_size=32"])
    assert config.task_name == "arithmetic" and config.task_settings == {"train_size": 32}


@pytest.mark.parametrize(
    ("override", "nearest"),
    [
        ("polcy=vip", "'policy'"),
        ("step=3", "'steps'"),
        ("trainer.learning_rat=1", "'trainer.learning_rate'"),
        ("learning_rate=1", "'trainer.learning_rate'"),
        ("trainer.lr=1", "'trainer.learning_rate'"),
        ("lr=1", "'trainer.learning_rate'"),
        ("trainer.epochs=1", "'trainer.num_train_epochs'"),
        ("policy=vipp", "'vip'"),
    ],
)
def test_unknown_keys_name_the_nearest_valid_one(write_config, override, nearest):
    with pytest.raises(ConfigurationError, match=f"nearest: {nearest}"):
        load_config(write_config(), [override])


@pytest.mark.parametrize(
    ("override", "rule"),
    [
        ("budget=18", "budget a positive multiple of it must hold"),
        ("budget=many", "`budget` must be a positive integer"),
        ("guard=3", "`guard` must be true or false"),
        ("seeds=[1,1]", "different integers"),
        ("seeds=[]", "different integers"),
        ("seeds=[-1]", "integers of at least 0"),
        ("predictor=beta & embedding_model=packaged", "`embedding_model` is read by"),
        ("max_group_size=3", "min_group_size <= budget / prompts <= max_group_size"),
        ("variance=lerned", "nearest: 'learned'"),
        ("compare=[vip]", "policies must differ"),
        ("estimator=reinforce", "`estimator` must be one of"),
        ("trainer.seed=3", "trainer.seed is set by 'seeds'"),
        ("trainer.num_generations=3", "set by 'group_size'"),
        ("model.size=3", "only `task` and `trainer` have keys inside"),
        ("nonsense", "key=value or --key value"),
        ("steps=[", "must be YAML"),
        ("task={size: 3}", "a mapping with `name`"),
    ],
)
def test_errors_state_the_rule(write_config, override, rule):
    with pytest.raises(ConfigurationError, match=rule):
        load_config(write_config(), override.split(" & "))


def test_settings_are_keys_of_the_job(write_config):
    config = load_config(write_config(), ["variance=learned", "predictor=beta", "success_reward=1.0"][:2])
    assert (config.variance, config.predictor) == ("learned", "discounted_beta")


def test_files_that_are_no_configuration(tmp_path: Path):
    with pytest.raises(ConfigurationError, match="readable file"):
        load_config(tmp_path / "none.yaml")
    (tmp_path / "list.yaml").write_text("- 1\n")
    with pytest.raises(ConfigurationError, match="must hold a mapping"):
        load_config(tmp_path / "list.yaml")
    (tmp_path / "short.yaml").write_text("task: arithmetic\n")
    with pytest.raises(ConfigurationError, match="no 'output'"):
        load_config(tmp_path / "short.yaml")


@pytest.mark.parametrize(
    "path",
    [p for p in sorted(EXAMPLES.glob("*.yaml")) if "verl" not in p.name and p.name != "gradient_variance.yaml"],
    ids=lambda path: path.name,
)
def test_every_example_is_valid(path):
    assert load_config(path).task_name


def test_the_gradient_example_is_valid():
    assert load_gradient_config(EXAMPLES / "gradient_variance.yaml").largest == 32


def arguments(config, policy="vip"):
    task = ArithmeticTask(train_size=16, test_size=4)
    return trainer_arguments(config, policy=policy, seed=3, folder=Path("run"), task=task, cache=Path("cache"))


def test_one_step_is_one_generation_batch_also_in_micro_batches(write_config):
    whole = arguments(load_config(write_config()))
    assert (whole["per_device_train_batch_size"], whole["steps_per_generation"]) == (16, 1)
    parts = arguments(load_config(write_config(), ["trainer.per_device_train_batch_size=4"]))
    assert (parts["steps_per_generation"], parts["gradient_accumulation_steps"]) == (4, 4)


def test_the_uniform_run_beside_a_selecting_one_is_the_trainer_without_viprl(write_config):
    config = load_config(write_config(), ["candidates=4", "compare=[uniform]"])
    assert arguments(config)["candidates"] == 4 and arguments(config, "uniform")["candidates"] == 1
    control = load_config(write_config(), ["candidates=4", "policy=uniform", "compare=[]"])
    assert arguments(control, "uniform")["candidates"] == 4


def test_the_budget_must_divide(write_config, monkeypatch):
    with pytest.raises(ConfigurationError, match="multiple of per_device_train_batch_size x processes"):
        arguments(load_config(write_config(), ["trainer.per_device_train_batch_size=5"]))
    monkeypatch.setenv("WORLD_SIZE", "3")
    with pytest.raises(ConfigurationError, match="multiple of the processes"):
        arguments(load_config(write_config()))


@pytest.mark.parametrize(
    ("estimator", "kind", "scale"), [("rloo", "rloo", None), ("dr_grpo", "grpo", "none"), ("grpo", "grpo", "group")]
)
def test_the_estimator_chooses_trainer_and_scaling(write_config, estimator, kind, scale):
    config = load_config(write_config(), [f"estimator={estimator}"])
    assert config.trainer_kind == kind and arguments(config).get("scale_rewards") == scale


def test_rewards_by_name(tmp_path: Path):
    task = ArithmeticTask(train_size=4, test_size=4)
    assert load_reward("task", task) == task.reward
    (tmp_path / "mine.py").write_text("def score(prompts, completions, **columns):\n    return [1.0] * len(prompts)\n")
    assert load_reward(f"{tmp_path / 'mine.py'}:score", task)([0], [0]) == [1.0]
    for bad in ("mine", "no_such_module:f", f"{tmp_path / 'mine.py'}:other", f"{tmp_path / 'none.py'}:score"):
        with pytest.raises(ConfigurationError, match="`reward` must"):
            load_reward(bad, task)
