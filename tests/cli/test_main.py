"""The command as a whole."""

from __future__ import annotations

import subprocess
import sys

import pytest

import viprl
from viprl.cli import main


def test_the_version_is_the_packages(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        main(["--version"])
    assert stopped.value.code == 0 and capsys.readouterr().out.strip() == f"viprl {viprl.__version__}"


def test_the_package_is_the_command() -> None:
    done = subprocess.run([sys.executable, "-m", "viprl", "--version"], capture_output=True, text=True)
    assert done.stdout.strip() == f"viprl {viprl.__version__}"


@pytest.mark.parametrize("rules", [",", "uniform,,vip", " "])
def test_empty_names_are_refused(rules: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["replay", "log.csv", "--rules", rules]) == 2
    assert "between its commas" in capsys.readouterr().err
