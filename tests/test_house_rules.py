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

COMMON = {"errors", "_arrays", "_files", "_parts", "_tables", "_yaml"}  # what every room may import
STEPS = {"prediction", "variance", "selection", "allocation"}
CORE = STEPS | {"feedback", "advantages", "history", "plan", "selecting", "checkpoint", "_restore", "allocator"}
BUILT = CORE | {"settings", "registry", "prompts", "streaming", "stream", "build"}
# a folder, or a module of viprl itself -> what it may import of viprl beside itself and the common modules, lazily or
# not; from the bottom of the house to its top
ALLOWED: dict[str, set[str]] = {
    "errors": set(),
    "_arrays": set(),
    "_files": set(),
    "_parts": set(),
    "_tables": set(),
    "_yaml": set(),
    "registry": set(),
    "settings": {"registry"},
    "checkpoint": set(),
    # the steps, which only the allocators join
    "prediction": set(),
    "variance": set(),
    "selection": set(),
    "allocation": set(),
    "feedback": {"prediction"},
    "advantages": {"feedback"},
    "history": set(),
    "_restore": {"prediction"},
    "selecting": {"selection", "prediction"},
    "plan": STEPS | {"selecting", "advantages", "feedback"},
    "allocator": CORE,
    "streaming": CORE,
    "stream": CORE | {"streaming"},
    "prompts": set(),
    # texts to vectors and numbers to pictures: they know nothing of rollouts, and build embeds texts
    "reports": set(),
    "embeddings": {"reports"},
    "build": BUILT | {"embeddings"},
    "__init__": BUILT,
    # rooms around the core; those that others need come first
    "evaluation": {"prompts"},
    "testing": CORE,
    "tasks": BUILT | {"embeddings", "evaluation"},
    "gradient": BUILT | {"reports", "tasks"},
    "diagnose": BUILT | {"gradient"},
    "integrations": BUILT | {"tasks", "gradient"},
    "replay": BUILT | {"embeddings", "evaluation", "reports"},
    "training": BUILT | {"reports", "evaluation", "tasks", "integrations"},
}
ALLOWED["cli"] = set(ALLOWED) | {"__init__"}
ALLOWED["__main__"] = {"cli"}
# what is imported for annotations alone, beyond that: the types that one step hands to the next
TYPES = {
    "variance": {"prediction", "feedback"},
    "allocation": {"prediction", "variance"},
    "feedback": {"variance", "plan"},
    "history": {"feedback", "plan"},
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


def _name(path: Path) -> str:
    """``viprl.room.module`` of a file; a package goes by its ``__init__``."""
    return ".".join(("viprl", *path.relative_to(SRC).with_suffix("").parts))


NAMES = {_name(path) for path in _modules()}


def _unit(name: str) -> str:
    """The folder, or the module of viprl itself, that a dotted name belongs to."""
    return name.split(".")[1]


def _imports(path: Path, *, typing_only: bool = False) -> set[str]:
    """Dotted names imported anywhere in the file: at run time, or under ``if TYPE_CHECKING`` alone."""
    tree = ast.parse(path.read_text())
    typing_nodes = {
        child
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)
        for statement in node.body
        for child in ast.walk(statement)
    }
    names: set[str] = set()
    for node in ast.walk(tree):
        if (node in typing_nodes) != typing_only:
            continue
        if isinstance(node, ast.Import):
            names.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and node.level == 0:
            names.update(f"{node.module}.{alias.name}" for alias in node.names)
    return names


def _own(names: set[str]) -> set[str]:
    """The modules of viprl among imported names, each as ``_name`` writes it."""
    found = set()
    for name in names:
        if name.split(".")[0] == "viprl":
            while name not in NAMES and f"{name}.__init__" not in NAMES:
                name = name.rpartition(".")[0]
            found.add(name if name in NAMES else f"{name}.__init__")
    return found


IMPORTS = {_name(path): _own(_imports(path)) for path in _modules()}


def _circle(graph: dict[str, set[str]]) -> list[str]:
    """A circle of the graph from a node back to itself; empty where there is none."""
    done: set[str] = set()

    def walk(node: str, behind: list[str]) -> list[str]:
        if node in behind:
            return [*behind[behind.index(node) :], node]
        if node in done:
            return []
        for other in sorted(graph.get(node, set()) - {node}):
            if found := walk(other, [*behind, node]):
                return found
        done.add(node)
        return []

    return next((found for node in sorted(graph) if (found := walk(node, []))), [])


def test_every_room_has_its_place() -> None:
    assert set(ALLOWED) == {_unit(name) for name in NAMES}
    assert not _circle({unit: allowed - {unit} for unit, allowed in ALLOWED.items() if unit != "__init__"})


@pytest.mark.parametrize("path", _modules(), ids=lambda p: str(p.relative_to(SRC)))
def test_imports_go_one_way(path: Path) -> None:
    unit = _unit(_name(path))
    allowed = ALLOWED[unit] | COMMON | {unit}
    for name in sorted(IMPORTS[_name(path)]):
        assert _unit(name) in allowed, f"{unit} must not import {name}"
    typing_imports = _imports(path, typing_only=True)
    for name in sorted(_own(typing_imports)):
        assert _unit(name) in allowed | TYPES.get(unit, set()), f"{unit} must not import {name}"
    for name in _imports(path) | typing_imports:
        owners = HEAVY.get(name.split(".")[0])
        assert owners is None or unit in owners, f"{unit} must not import {name}"


@pytest.mark.parametrize("package", sorted({name.rpartition(".")[0] for name in NAMES}))
def test_no_package_has_an_import_circle(package: str) -> None:
    """Neither between its modules nor between the packages in it, lazy imports included.

    A circle of any two modules shows in the package where their names part.
    """
    depth = package.count(".") + 1
    inside: dict[str, set[str]] = {}
    for name, imported in IMPORTS.items():
        if name.startswith(f"{package}."):
            own = {other.split(".")[depth] for other in imported if other.startswith(f"{package}.")}
            inside.setdefault(name.split(".")[depth], set()).update(own)
    assert not _circle(inside), " -> ".join(_circle(inside))


def test_what_is_allowed_is_used() -> None:
    """A room's licence is no wider than its needs, where it names rooms around the core."""
    around = set(ALLOWED) - BUILT - COMMON - {"__init__", "testing", "cli"}
    used: dict[str, set[str]] = {}
    for name, imported in IMPORTS.items():
        used.setdefault(_unit(name), set()).update(map(_unit, imported))
    for unit in around:
        assert ALLOWED[unit] & around <= used[unit], f"{unit} does not import {ALLOWED[unit] & around - used[unit]}"


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
