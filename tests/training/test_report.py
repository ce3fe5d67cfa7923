"""The report's numbers against hand computations, and its page."""

from __future__ import annotations

import re

import numpy as np
import pandas as pd
import pytest

pytest.importorskip("trl")
pytest.importorskip("matplotlib")

from viprl.training.report import collect, pictures
from viprl.training.report.style import draw


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
    return pd.DataFrame(rows, columns=columns)


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


def test_heat_map_rows_are_sorted_and_cells_are_means():
    rows = [(s, f"p{q}", q, 8, 4 + q, 0.5, 0.25) for s in range(10) for q in range(8)]
    grid, edges, rates = pictures.heat_map(history(rows), rows=4)
    assert len(grid) == 4 and (np.diff(rates) > 0).all()
    assert grid[0].tolist() == [4.5] * grid.shape[1] and grid[-1].tolist() == [10.5] * grid.shape[1]
    assert edges[0] == 0 and edges[-1] == 10


def test_heat_map_leaves_cells_without_a_group_empty():
    grid, _, _ = pictures.heat_map(history([(0, "a", 0, 4, 4, 0.1, 0.1), (9, "b", 4, 4, 5, 0.9, 0.1)] * 8))
    assert np.isnan(grid[0, -1]) and np.isnan(grid[1, 0]) and grid[0, 0] == 4 and grid[1, -1] == 5


def test_reliability_bins_by_hand():
    table = pictures.reliability_table(
        history([(0, "a", 3, 4, 4, 0.71, 0.2), (0, "b", 5, 6, 6, 0.79, 0.2), (0, "c", 0, 5, 5, 0.0, 0.0)])
    )
    assert table["rate"].tolist() == [0.0, 0.8]
    assert table["predicted"].tolist() == pytest.approx([0.0, (4 * 0.71 + 6 * 0.79) / 10])
    assert table["share"].tolist() == pytest.approx([1 / 3, 2 / 3])


def test_predictions_of_one_fall_into_the_last_bin():
    assert pictures.reliability_table(history([(0, "a", 4, 4, 4, 1.0, 0.0)]))["middle"].tolist() == [0.95]


def test_pictures_come_in_two_looks_and_as_png(tmp_path):
    picture = draw(
        "p", "t", "c", (3, 2), lambda figure, theme: figure.subplots().plot([0, 1], color=theme.series[0]), tmp_path
    )
    assert (tmp_path / "p.png").read_bytes().startswith(b"\x89PNG")
    assert picture.light != picture.dark and picture.light.startswith("data:image/svg+xml;base64,")


def test_a_run_of_dead_groups_has_a_dash_for_its_variance():
    from viprl.training.report import write

    table = history([(0, "a", 0, 4, 4, 0.1, 0.05), (0, "b", 0, 6, 6, 0.1, 0.05)])
    ratio = collect.overall_ratio(collect.variance_ratios(table, "rloo"), "realised")
    assert np.isnan(ratio) and write._rate(ratio) == "–" and write._finite({"x": ratio}) == {"x": None}


def luminance(color: str) -> float:
    channels = [int(color[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(first: str, second: str) -> float:
    low, high = sorted((luminance(first), luminance(second)))
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("name", ["LIGHT", "DARK"])
def test_colours_are_legible(name):
    from viprl.training.report import style

    theme = getattr(style, name)
    assert contrast(theme.ink, theme.paper) > 7 and contrast(theme.quiet, theme.paper) > 4.5
    assert all(contrast(color, theme.paper) > 3 for color in theme.series)


def test_page_colours_equal_the_pictures_colours():
    from importlib.resources import files

    from viprl.training.report.style import DARK, LIGHT

    text = files("viprl.training.report").joinpath("page.html.j2").read_text()
    light, dark = re.findall(r"--paper: (#\w{6}); --ink: (#\w{6}); --quiet: (#\w{6})", text)
    assert light == (LIGHT.paper, LIGHT.ink, LIGHT.quiet) and dark == (DARK.paper, DARK.ink, DARK.quiet)
