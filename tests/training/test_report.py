"""The report's numbers against hand computations, its sentences, and how its page looks in a real browser."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

pytest.importorskip("trl")
pytest.importorskip("matplotlib")

from pagechecks import open_browser, page_faults

from viprl.history import HISTORY_COLUMNS, HistoryWriter
from viprl.training import load_config
from viprl.training.report import charts, collect, words, write_report
from viprl.training.run import Run, runs_of


def history(rows):
    columns = [
        "step",
        "prompt_id",
        "successes",
        "n_rollouts",
        "group_size",
        "predicted_mean",
        "predicted_bernoulli_variance",
    ]
    table = pd.DataFrame(rows, columns=columns)
    return table.assign(reward_var=collect.sample_variance(table))


def test_sample_variance_by_hand():
    table = history([(0, "a", 1, 4, 4, 0.5, 0.25), (0, "b", 0, 3, 3, 0.5, 0.25), (0, "c", 1, 1, 1, 0.5, 0.25)])
    assert collect.sample_variance(table)[:2].tolist() == [1 * 3 / 12, 0.0]
    assert np.isnan(collect.sample_variance(table)[2])


def test_variance_ratio_by_hand():
    table = history([(0, "a", 2, 6, 6, 0.5, 0.25), (0, "b", 1, 4, 4, 0.1, 0.05)])
    ratios = collect.variance_ratios(table, "rloo")
    predicted = (0.25 / 5 + 0.05 / 3) / (0.25 / 4 + 0.05 / 4)
    realised = (8 / 30 / 5 + 3 / 12 / 3) / (8 / 30 / 4 + 3 / 12 / 4)
    assert collect.overall_ratio(ratios, "predicted") == pytest.approx(predicted)
    assert collect.overall_ratio(ratios, "realised") == pytest.approx(realised)
    dr_grpo = collect.overall_ratio(collect.variance_ratios(table, "dr_grpo"), "predicted")
    assert dr_grpo == pytest.approx((0.25 * 5 / 36 + 0.05 * 3 / 16) / (0.3 * 4 / 25))


def test_the_realised_ratio_is_of_the_rewards_that_were_trained_on():
    """Real rewards have a variance that no count of successes tells."""
    table = history([(0, "a", 2, 6, 6, 0.5, 0.25), (0, "b", 1, 4, 4, 0.5, 0.25)]).assign(reward_var=[3.0, 1.0])
    realised = collect.overall_ratio(collect.variance_ratios(table, "rloo"), "realised")
    assert realised == pytest.approx((3 / 5 + 1 / 3) / (3 / 4 + 1 / 4))


def test_the_realised_ratio_is_unbiased():
    rng = np.random.default_rng(0)
    p, n = np.array([0.5, 0.2, 0.05, 0.9]), np.array([12, 10, 4, 6])
    rows = [
        (step, str(q), rng.binomial(n[q], p[q]), n[q], n[q], p[q], p[q] * (1 - p[q]))
        for step in range(4000)
        for q in range(4)
    ]
    ratios = collect.variance_ratios(history(rows), "rloo")
    assert collect.overall_ratio(ratios, "realised") == pytest.approx(
        collect.overall_ratio(ratios, "predicted"), rel=0.02
    )


def test_equal_groups_have_ratio_one():
    table = history([(s, str(q), s % 3, 4, 4, 0.3, 0.2) for s in range(3) for q in range(5)])
    assert collect.overall_ratio(collect.variance_ratios(table, "rloo"), "realised") == pytest.approx(1.0)


def test_heat_map_rows_are_tenths_of_success_and_cells_are_means():
    rows = [(s, f"p{q}", q, 8, 4 + q, 0.5, 0.25) for s in range(10) for q in range(9)]
    grid, edges = charts.heat_map(history(rows))
    assert grid.shape[0] == 10 and edges[0] == 1 and edges[-1] == 11, "steps count from 1, as in the log"
    assert (grid[0] == 4).all() and (grid[2] == 6).all() and (grid[9] == 12).all(), "p0 at 0, p2 at .25, p8 at 1"
    assert np.isnan(grid[4]).all(), "no prompt has a rate in [.4, .5)"
    same = history([(s, f"q{q}", 1, 8, 3 + 2 * q, 0.1, 0.1) for s in range(10) for q in range(2)])
    assert (charts.heat_map(same)[0][1] == 4).all(), "two prompts of rate .125 share a cell"


def test_reliability_bins_by_hand():
    table = charts.reliability_table(
        history([(0, "a", 3, 4, 4, 0.71, 0.2), (0, "b", 5, 6, 6, 0.79, 0.2), (0, "c", 0, 5, 5, 0.0, 0.0)])
    )
    assert table["rate"].tolist() == [0.0, 0.8]
    assert table["predicted"].tolist() == pytest.approx([0.0, (4 * 0.71 + 6 * 0.79) / 10])
    assert table["share"].tolist() == pytest.approx([1 / 3, 2 / 3])


def test_predictions_of_one_fall_into_the_last_bin():
    assert charts.reliability_table(history([(0, "a", 4, 4, 4, 1.0, 0.0)]))["middle"].tolist() == [0.95]


def test_a_run_of_dead_groups_has_a_dash_for_its_variance():
    table = history([(0, "a", 0, 4, 4, 0.1, 0.05), (0, "b", 0, 6, 6, 0.1, 0.05)])
    ratio = collect.overall_ratio(collect.variance_ratios(table, "rloo"), "realised")
    assert np.isnan(ratio) and words.rate(ratio) == "–"


def record(run: Run, *, steps: int = 12, real: bool = False, used: float = 1.0, silent: bool = False, end: float = 0.7):
    """What a finished run leaves behind, without training it: eight prompts, four a step."""
    rng = np.random.default_rng(run.seed)
    writer = HistoryWriter(run.folder / collect.HISTORY_FOLDER, format="jsonl")
    loss = {} if real else {"viprl/log_loss": 0.5, "viprl/log_loss_constant": 0.6}
    uniform = run.policy == "uniform"
    run.metrics.write({"step": 0, "heldout/sampled": 0.4, "heldout/greedy": 0.5})
    for step in range(steps):
        rows = []
        for q in range(4):
            n, p = (4 if uniform else 3 + q % 2 * 2), (2 * q + step % 2) / 8
            rewards = rng.normal(p, 0.1, n) if real else (rng.random(n) < p).astype(float)
            row = dict.fromkeys(HISTORY_COLUMNS) | {
                "step": step,
                "prompt_id": f"p{q}{step % 2}",
                "visit": step // 2,
                "successes": float(rewards.sum()),
                "n_rollouts": n,
                "reward_mean": float(rewards.mean()),
                "reward_var": float(rewards.var(ddof=1)),
                "predicted_mean": 0.5 if real else 0.8 * p + 0.1,
                "predicted_bernoulli_variance": 0.2,
                "group_size": n,
            }
            rows.append(row)
        if not silent:
            writer.add(rows)
        common = {"rollouts": 16 * (step + 1), "step_seconds": 0.5, "viprl/overhead_seconds": 0.01}
        reward = float("nan") if silent else 0.4 + 0.02 * step
        run.metrics.write({"step": step + 1, "reward": reward, "viprl/policy_used": used, **common, **loss})
    writer.flush()
    run.metrics.write({"step": steps, "heldout/sampled": end, "heldout/greedy": end})
    rates = np.clip(end + 0.1 * np.sin(np.arange(32)), 0, 1).tolist()
    summary = {"heldout_prompt_ids": [f"h{i}" for i in range(32)], "heldout_sampled": rates}
    (run.folder / "summary.json").write_text(json.dumps(summary))


@pytest.fixture
def job(write_config, tmp_path: Path):
    """Writes the report of a job whose runs are recorded with the given numbers."""

    def make(config=(), **numbers):
        settings = load_config(write_config(**dict(config)))
        Path(settings.output).mkdir(exist_ok=True)
        (Path(settings.output) / "config.yaml").write_text("task: arithmetic\n")
        for run in runs_of(settings):
            record(run, **numbers.get(run.policy, numbers.get("all", {})))
        page, lines = write_report(tmp_path / "report", settings, runs_of(settings))
        return page, "\n".join(lines)

    return make


BOTH = {"compare": ["uniform"], "seeds": [0, 1]}


def test_the_verdict_stands_on_top_and_in_the_last_lines(job):
    page, said = job(BOTH, vip={"end": 0.7}, uniform={"end": 0.7})
    sentence = next(line for line in said.splitlines() if "not shown to differ from uniform" in line)
    assert "0.700 against 0.700, difference +0.000 (95 % interval" in sentence and "2 seeds" in sentence
    text = page.read_text()
    assert sentence in text and text.index(sentence) < text.index('class="tiles')
    assert "p(1-p) f(n)" in said and "no measured gradient" in text
    assert text.count("<span>uniform: ") == 4, "every card has the comparison's number beside it"
    better, worse = (
        job(BOTH, vip={"end": 0.8}, uniform={"end": 0.5})[1],
        job(BOTH, vip={"end": 0.5}, uniform={"end": 0.8})[1],
    )
    assert "vip is better than uniform" in better and "vip is worse than uniform" in worse


def test_without_a_comparison_nothing_is_claimed(job):
    _, said = job()
    assert "held-out success 0.400 -> 0.700; whether its allocation helped is not shown" in said


def test_how_often_the_policys_groups_were_used_is_said(job):
    page, said = job(BOTH, vip={"used": 0.0}, uniform={"used": 0.0})
    assert said.count("WARNING: vip (seed") == 2 and "used in 0 of 12 steps" in said
    assert 'class="warning"' in page.read_text() and "uniform (seed 0): the policy's groups" not in said
    page, said = job()
    assert "the policy's groups were used in 12 of 12 steps" in said and "WARNING" not in said
    assert 'class="warning"' not in page.read_text()


def test_real_rewards_have_a_report_without_probabilities(job, tmp_path: Path):
    page, said = job(all={"real": True})
    assert "log loss" not in page.read_text() and "variance ratio" in said
    assert {p.stem for p in tmp_path.joinpath("report").glob("*.png")} == {"learning_curve", "rollouts", "variance"}


def test_a_run_without_any_reward_has_a_report(job):
    page, said = job(all={"silent": True})
    assert "variance ratio – predicted, – realised" in said and page.exists()


@pytest.mark.parametrize("width", [1280, 400])
@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_looks(job, width, dark):
    page, _ = job(BOTH)
    with open_browser() as browser:
        browser.open(page, width, dark=dark)
        assert page_faults(browser, width) == []
        background = browser.evaluate("getComputedStyle(document.body).backgroundColor")
        assert (background == "rgb(255, 255, 255)") != dark


def test_a_job_that_chooses_prompts_says_what_it_chose():
    table = history([(step, f"p{q}", q % 2 * 2, 4, 4, 0.5, 0.2) for step in range(3) for q in range(6)])
    table = table.reindex(columns=list(HISTORY_COLUMNS))
    table["reward_var"] = [0.0, 0.3] * 9
    plain = collect.choice(table)
    assert plain == {"live_share": 0.5}
    table["candidates"] = 24
    chosen = collect.choice(table)
    assert chosen == {"live_share": 0.5, "kept": 6.0, "candidates": 24.0}
    rows = [{"policy": "vip", "seed": 0, **chosen}, {"policy": "uniform", "seed": 0, **plain}]
    assert words.choices(rows) == [
        "vip (seed 0): kept 6 prompts of 24 candidates a step; 50.00 % of its groups had a gradient.",
        "uniform (seed 0): every prompt of the batch; 50.00 % of its groups had a gradient.",
    ]
    assert words.choices(rows[1:]) == []
