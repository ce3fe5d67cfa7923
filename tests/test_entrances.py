"""What the settings refuse, every entrance refuses: the same words, before a file is written."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.refusals import REFUSED

from viprl.cli import main
from viprl.cli.allocate import SETTINGS
from viprl.errors import ConfigurationError
from viprl.replay.request import ReplayRequest


def everything(folder: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize(("given", "words"), REFUSED.values(), ids=list(REFUSED))
def test_viprl_train(given: dict[str, Any], words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("trl")
    job = {"task": "arithmetic", "output": str(tmp_path / "job"), "budget": 64, "group_size": 8, **given}
    (tmp_path / "job.yaml").write_text(yaml.safe_dump(job))
    before = everything(tmp_path)
    assert main(["train", str(tmp_path / "job.yaml")]) == 2
    assert words in capsys.readouterr().err and everything(tmp_path) == before


def options(given: dict[str, Any]) -> list[str]:
    words: list[str] = []
    for name, value in given.items():
        words.append("--" + name.replace("_", "-"))
        words += [str(item) for item in value] if isinstance(value, list) else [str(value)]
    return words


TYPED = {
    name: (given, words)
    for name, (given, words) in REFUSED.items()
    if set(given) <= set(SETTINGS) and not any(isinstance(value, bool | float) for value in given.values())
}


@pytest.mark.parametrize(("given", "words"), TYPED.values(), ids=list(TYPED))
def test_viprl_allocate(given: dict[str, Any], words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text("".join(json.dumps({"id": f"q{i}", "text": f"What is {i}?"}) + "\n" for i in range(6)))
    before = everything(tmp_path)
    assert main(["allocate", "--prompts", str(prompts), *options({"budget": 48, **given})]) == 2
    assert words in capsys.readouterr().err and everything(tmp_path) == before


# the settings that a replay has, under its own names: a rule is policy:predictor, embeddings lie in a file
REPLAYED = {
    name: (given, words)
    for name, (given, words) in REFUSED.items()
    if set(given)
    <= {"estimator", "policy", "predictor", "min_group_size", "max_group_size", "side_information", "embedding_model"}
}


@pytest.mark.parametrize(("given", "words"), REPLAYED.values(), ids=list(REPLAYED))
def test_viprl_replay(given: dict[str, Any], words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rest = dict(given)
    rule = f"{rest.pop('policy', 'vip')}:{rest.pop('predictor', 'calibrated')}"
    side = list(rest.pop("side_information", ()))
    request: dict[str, Any] = {"log": str(tmp_path / "no-such-log"), "prompts": str(tmp_path / "no-such-prompts")}
    request |= {"rules": [rule], "side_information": side, "out": str(tmp_path / "out")}
    if rest.pop("embedding_model", None):
        request["embeddings"] = str(tmp_path / "no-such.npz")
    with pytest.raises(ConfigurationError) as refused:
        ReplayRequest(**request, **rest)
    assert words in str(refused.value)
    if not any(isinstance(value, bool | float) for value in rest.values()):  # which the command line cannot say
        log = request.pop("log")
        lists = {name: ",".join(request.pop(name)) for name in ("rules", "side_information") if request[name]}
        assert main(["replay", log, *options({**lists, **{k: v for k, v in request.items() if v}, **rest})]) == 2
        assert words in capsys.readouterr().err
    assert not everything(tmp_path)


def test_most_refusals_reach_every_entrance() -> None:
    assert len(TYPED) >= 10
    assert len(REPLAYED) >= 10


@pytest.mark.parametrize(("given", "words"), REFUSED.values(), ids=list(REFUSED))
def test_verl(given: dict[str, Any], words: str) -> None:
    from viprl.integrations.verl.options import FOLLOWED, AdaptiveOptions

    estimator = given.get("estimator", "rloo")
    rest = {name: value for name, value in given.items() if name not in FOLLOWED}
    if rest == {name: value for name, value in given.items() if name != "estimator"}:
        with pytest.raises(ConfigurationError) as refused:
            AdaptiveOptions.from_config({"viprl": rest, "trainer": {"default_local_dir": "/nowhere"}}, estimator)
        assert words in str(refused.value)
