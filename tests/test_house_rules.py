"""The rules of the house: imports go one way, and the core needs numpy and scipy alone."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

SRC = Path(__file__).resolve().parents[1] / "src" / "viprl"

COMMON = {"errors", "_arrays", "_files", "_parts", "_tables"}  # what every room may import
# a folder (or top-level module) -> what it may import of viprl at run time beside the common modules
STEPS = {"prediction", "variance", "selection", "allocation"}
CORE = STEPS | {
    "registry",
    "settings",
    "feedback",
    "advantages",
    "history",
    "plan",
    "checkpoint",
    "selecting",
    "_restore",
    "allocator",
}
ALLOWED = {
    "errors": set(),
    "_arrays": set(),
    "_files": set(),
    "_parts": set(),
    "_tables": set(),
    "registry": set(),
    "settings": {"registry"},
    "checkpoint": set(),
    "prediction": {"prediction"},
    "variance": {"variance"},
    "allocation": {"allocation"},
    "selection": {"selection"},
    "feedback": {"feedback", "plan", "prediction"},
    "advantages": {"feedback"},
    "history": set(),
    "selecting": {"prediction", "selection"},
    "plan": {"prediction", "variance", "allocation", "selecting", "advantages", "feedback"},
    "_restore": {"prediction"},
    "allocator": CORE,
    "streaming": CORE | {"streaming"},
    "stream": CORE | {"streaming"},
    "prompts": {"prompts"},
    "build": CORE | {"build", "stream", "prompts", "embeddings"},
}
# heavy packages -> the folders that may import them, at any depth
HEAVY = {
    "torch": {"integrations", "tasks", "evaluation", "embeddings", "gradient", "diagnose", "training"},
    "transformers": {"integrations", "tasks", "evaluation", "embeddings", "gradient", "diagnose", "training"},
    "trl": {"integrations", "tasks", "training"},
    "verl": {"integrations"},
    "ray": {"integrations"},
    "sentence_transformers": {"embeddings", "tasks"},
}


def _modules() -> list[Path]:
    return sorted(SRC.rglob("*.py"))


def _unit(path: Path) -> str:
    relative = path.relative_to(SRC)
    return relative.parts[0] if len(relative.parts) > 1 else relative.stem


def _imports(path: Path, *, include_typing: bool) -> set[str]:
    """Dotted names imported anywhere in the file; those under ``if TYPE_CHECKING`` only on request."""
    tree = ast.parse(path.read_text())
    skipped: set[ast.AST] = set()
    if not include_typing:
        for node in ast.walk(tree):
            if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
                skipped.update(child for statement in node.body for child in ast.walk(statement))
    names: set[str] = set()
    for node in ast.walk(tree):
        if node in skipped:
            continue
        if isinstance(node, ast.Import):
            names.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and node.level == 0:
            names.add(node.module)
    return names


@pytest.mark.parametrize("path", _modules(), ids=lambda p: str(p.relative_to(SRC)))
def test_imports_go_one_way(path: Path) -> None:
    unit = _unit(path)
    if unit in ALLOWED:
        for name in _imports(path, include_typing=False):
            if name.startswith("viprl."):
                assert name.split(".")[1] in ALLOWED[unit] | COMMON, f"{unit} must not import {name}"
    for name in _imports(path, include_typing=True):
        owners = HEAVY.get(name.split(".")[0])
        assert owners is None or unit in owners, f"{unit} must not import {name}"


def test_relative_imports_are_not_used() -> None:
    for path in _modules():
        for node in ast.walk(ast.parse(path.read_text())):
            assert not (isinstance(node, ast.ImportFrom) and node.level), f"relative import in {path}"


def test_import_needs_numpy_and_scipy_alone() -> None:
    code = (
        "import sys, viprl\n"
        "viprl.RolloutAllocator(viprl.DiscountedBeta(), viprl.RLOO()).allocate(['a', 'b'], 16)\n"
        "heavy = {m.split('.')[0] for m in sys.modules} & {'torch', 'transformers', 'trl', 'verl', 'ray', 'pandas',"
        " 'sentence_transformers', 'sklearn', 'matplotlib', 'datasets', 'yaml', 'rich', 'tqdm'}\n"
        "print(sorted(heavy))"
    )
    environment = {**os.environ, "PYTHONPATH": str(SRC.parent)}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=environment)
    assert done.stdout.strip() == "[]"


def test_import_loads_only_the_light_parts_of_scipy() -> None:
    """What costs time: scipy.stats alone would make `import viprl` several times slower (benchmarks/import_time.py)."""
    code = (
        "import sys, viprl\n"
        "parts = {m.split('.')[1] for m in sys.modules if m.startswith('scipy.')}\n"
        "print(*sorted(p for p in parts if not p.startswith('_')))"
    )
    environment = {**os.environ, "PYTHONPATH": str(SRC.parent)}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=environment)
    assert set(done.stdout.split()) <= {"linalg", "sparse", "special", "version"}


def test_files_are_replaced_and_arrays_are_named_in_one_place() -> None:
    for path in _modules():
        text = path.read_text()
        assert path.name == "_files.py" or "os.replace(" not in text, f"{path} writes and renames by itself"
        assert path.name == "_arrays.py" or not re.search(r"^\w+ = NDArray\[", text, re.M), f"{path} names array types"


def test_files_keep_their_size() -> None:
    long = {str(p.relative_to(SRC)): n for p in _modules() if (n := len(p.read_text().splitlines())) > 400}
    assert not long, f"files of more than 400 lines: {long}"
