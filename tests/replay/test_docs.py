"""The code of docs/replay.md runs as written, and its example figures are those of the recorded log."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pandas as pd

from viprl import registry
from viprl.cli import build_parser
from viprl.replay.lineup import OWN_RULES

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "replay.md").read_text()


def test_the_python_example_runs(tmp_path, monkeypatch):
    rng = np.random.default_rng(0)
    p = rng.random(20)
    frame = pd.DataFrame({"step": np.repeat(np.arange(6), 20), "prompt_id": [f"q{q}" for q in range(20)] * 6})
    frame.assign(successes=rng.binomial(8, np.tile(p, 6)), n_rollouts=8).to_parquet(tmp_path / "log.parquet")
    monkeypatch.chdir(tmp_path)
    (code,) = re.findall(r"```python\n(.*?)```", PAGE, flags=re.S)
    exec(compile(code, "docs/replay.md", "exec"), {"__name__": "docs"})
    assert (tmp_path / "replay" / "report.html").exists()


def test_every_rule_and_predictor_is_explained():
    predictors = [(*e.aliases, e.name)[0] for e in registry.entries("predictor")]
    for name in [*OWN_RULES, *predictors, *registry.names("policy")]:
        assert f"`{name}" in PAGE, name


def test_every_option_that_the_page_names_exists():
    parser = build_parser()
    actions = next(a for a in parser._actions if a.dest == "verb").choices
    known = {option for verb in ("replay", "forecast") for a in actions[verb]._actions for option in a.option_strings}
    named = set(re.findall(r"(--[a-z][a-z-]+)", PAGE))
    assert named <= known, named - known
