"""Many rules at once: the same whatever the number of processes, and nothing finished is lost."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

import viprl
from viprl.errors import ConfigurationError, InvalidInputError
from viprl.prompts import PromptSet
from viprl.replay import PromptPool, Setting, compare, summarize
from viprl.replay.engine.compare import _deciding_files
from viprl.replay.engine.store import load_trace
from viprl.replay.lineup import OWN_RULES
from viprl.replay.rules import Rule
from viprl.variance import RLOO

RULES = ["uniform", "vip:beta", "vip:last_rate", "dapo", "mopps", "vigor"]
SETTING = Setting(RLOO())


def world(n=60, **options):
    p = np.random.default_rng(0).beta(0.5, 0.6, n)
    return PromptPool([f"q{q}" for q in range(n)], p, batch=20, **options)


def run(rules=RULES, world_=None, **options):
    world_ = world_ or world()
    return compare(world_, rules, PromptSet(world_.prompt_ids), SETTING, **options)


def figures(comparison):
    return {
        key: {name: np.asarray(column).tolist() for name, column in trace.steps.items() if name != "seconds"}
        for key, trace in comparison.traces.items()
    }


def test_the_number_of_processes_changes_nothing():
    alone = run(seeds=(0, 1), jobs=1)
    many = run(seeds=(0, 1), jobs=2)
    assert figures(alone) == figures(many) and len(alone.traces) == 12 and not many.interrupted


def test_finished_traces_are_picked_up_again(tmp_path):
    first = run(seeds=(0,), jobs=1, folder=tmp_path)
    seen: list[tuple[int, int, str]] = []
    again = run(seeds=(0, 1), jobs=1, folder=tmp_path, progress=lambda *what: seen.append(what))
    assert len(again.traces) == 12 and seen[-1][1] == 6 * world().n_steps  # only the second seed was run
    assert {k: v for k, v in figures(again).items() if k[1] == 0} == figures(first)
    other = run(["uniform"], seeds=(0,), jobs=1, folder=tmp_path, world_=world(epochs=3))
    assert len(other.traces["uniform", 0].phases) == 9  # another world is not mixed up with it


def test_damaged_kept_traces_are_made_anew(tmp_path):
    run(["uniform"], jobs=1, folder=tmp_path)
    (kept,) = tmp_path.glob("*.npz")
    data = kept.read_bytes()
    for length in (0, 10, len(data) // 2, len(data) - 4):
        kept.write_bytes(data[:length])
        assert load_trace(kept) is None
        assert run(["uniform"], jobs=1, folder=tmp_path).traces["uniform", 0].finished
        assert load_trace(kept) is not None


class Broken(Rule):
    name, source = "broken", "a test"

    def decide(self, step, ids, prediction, setting):
        if step.number == 2:
            raise ZeroDivisionError("as planned")
        return np.full(len(step), 8)


@pytest.mark.parametrize("jobs", [1, 2])
def test_a_rule_that_breaks_does_not_take_the_others_with_it(monkeypatch, jobs):
    monkeypatch.setitem(OWN_RULES, "broken", lambda seed: Broken())
    result = run(["uniform", "broken", "vip:beta"], jobs=jobs)
    assert result.failures == {"broken": "ZeroDivisionError: as planned"}
    summary = summarize(result, world(), SETTING)
    assert {row.rule for row in summary.headline_rows} == {"uniform", "vip:beta"}


def test_an_interruption_keeps_what_is_finished(monkeypatch, tmp_path):
    class Stopped(Broken):
        def decide(self, step, ids, prediction, setting):
            raise KeyboardInterrupt

    monkeypatch.setitem(OWN_RULES, "broken", lambda seed: Stopped())
    result = run(["uniform", "vip:beta", "broken", "dapo"], jobs=1, folder=tmp_path)
    assert result.interrupted and set(result.traces) == {("uniform", 0), ("vip:beta", 0)}
    assert summarize(result, world(), SETTING).interrupted
    assert len(list(tmp_path.glob("*.npz"))) == 2


def test_what_cannot_be_compared_is_refused():
    with pytest.raises(InvalidInputError, match="at least one rule"):
        run([])
    with pytest.raises(InvalidInputError, match="same ids"):
        compare(world(), ["uniform"], PromptSet(("a",)), SETTING)
    with pytest.raises(ConfigurationError, match="needs embeddings"):
        run(["vip:gp"])
    with pytest.raises(InvalidInputError, match="at least one rule must be finished"):
        summarize(
            compare(world(), ["uniform"], PromptSet(world().prompt_ids), SETTING, jobs=1).__class__([], []),
            world(),
            SETTING,
        )


def test_summary_says_what_the_traces_say():
    result = run(seeds=(0, 1, 2), jobs=1)
    summary = summarize(result, world(), SETTING)
    assert summary.phases == ["epoch 1", "epoch 2"]
    rows = {row.rule: row for row in summary.headline_rows}
    by_hand = np.mean(
        [
            result.traces["vip:beta", s].column("variance", "epoch 2").sum()
            / result.traces["vip:beta", s].column("uniform", "epoch 2").sum()
            for s in (0, 1, 2)
        ]
    )
    row = rows["vip:beta"]
    assert row.ratio.estimate == pytest.approx(by_hand)
    assert row.rollouts_saved.estimate == pytest.approx(100 * (1 - 8 / (1 + 7 / by_hand)))
    best = summary.best_ratio["epoch 2"]
    assert row.gap_closed is None and best < by_hand  # nine steps give no interval, so no share either
    assert rows["uniform"].ratio.estimate == 1.0 and rows["uniform"].verdict == "no difference shown"
    assert rows["dapo"].rollouts > 100 and rows["mopps"].left_out > 20
    ratios = [r.ratio.estimate for r in summary.headline_rows]
    assert ratios == sorted(ratios)
    for (a, b), interval in summary.differences.items():
        assert interval.estimate == pytest.approx(rows[a].ratio.estimate - rows[b].ratio.estimate)
    later = {r.predictor: r for r in summary.calibration if r.kind == "later"}
    assert later["beta"].against_beta is None and later["last_rate"].against_beta.excludes(0.0)


SCRIPT = """
import sys
from viprl.cli import main
sys.exit(main(["replay", "--protocol", "drift", "--rules", "uniform,vip:beta,vip:last_rate,dapo", "--jobs", "2",
               "--seeds", ",".join(map(str, range(99))), "--resamples", "50", "--out", sys.argv[1]]))
"""


@pytest.mark.slow
def test_ctrl_c_in_the_middle_leaves_a_report(tmp_path):
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    process = subprocess.Popen(
        [sys.executable, "-c", SCRIPT, str(tmp_path)],
        stdout=subprocess.PIPE,
        text=True,
        env=environment,
        start_new_session=True,
        # a shell's background job starts with SIGINT ignored, and its children inherit that
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    deadline = time.monotonic() + 120
    while len(list(Path(tmp_path).glob("runs/*.npz"))) < 3 and time.monotonic() < deadline:
        time.sleep(0.05)
    os.killpg(process.pid, signal.SIGINT)  # a terminal sends it to every process of the group
    output, _ = process.communicate(timeout=120)
    assert process.returncode == 130, output
    assert "interrupted: the report holds the rules that were finished" in output
    assert (tmp_path / "report.html").exists() and "interrupted" in (tmp_path / "report.html").read_text()


def test_the_cache_key_covers_what_decides_a_trace_and_nothing_else():
    root = Path(viprl.__file__).parent
    files = {str(path.relative_to(root)) for path in _deciding_files()}
    assert all((root / name).is_file() for name in files)
    assert not {"replay/wording.py", "replay/summary.py", "cli/replay.py", "replay/request.py"} & files
    code = (
        "import sys, viprl.replay\n"
        "print(*(m.__file__ for name, m in sys.modules.items() if name.startswith('viprl.')), sep='\\n')"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = {str(Path(name).relative_to(root)) for name in done.stdout.split()}
    shown = ("summary", "wording", "bootstrap", "calibration", "rates", "saving")  # what comes after the traces
    read_or_shown = ("evaluation/", "replay/readers/", *(f"replay/{name}.py" for name in shown))
    stored_or_run = (
        "stream",
        "history",
        "checkpoint",
        "_restore",
        "_files",
        "_tables",
        "errors",
        "replay/engine/",
        "replay/__",
    )
    assert {name for name in loaded - files if not name.startswith((*read_or_shown, *stored_or_run))} == set()
