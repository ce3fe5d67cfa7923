"""The report: what it says, that it stands alone, and how it looks in a real browser."""

from __future__ import annotations

import json
import re
from html.parser import HTMLParser

import numpy as np
import pytest
from pagechecks import open_browser, page_faults

from viprl.evaluation import Interval
from viprl.prompts import PromptSet
from viprl.replay import PromptPool, RecordedLog, Setting, VisitLog, compare, summarize
from viprl.replay.report import write_report
from viprl.replay.report.page import render_page
from viprl.replay.wording import headline, label, text_table, whole
from viprl.reports.charts import ticks
from viprl.variance import RLOO

SETTING = Setting(RLOO())
RULES = [
    "uniform",
    "vip:calibrated",
    "vip:beta",
    "vip:last_rate",
    "inverse_variance:beta",
    "knapsack_rl",
    "gvm",
    "dynamo",
    "mopps",
    "greso",
    "dapo",
    "vigor",
    "pilot_commit",
]


@pytest.fixture(scope="module")
def summary():
    p = np.random.default_rng(0).beta(0.4, 0.5, 160)
    world = PromptPool([f"q{q}" for q in range(160)], p, batch=16, epochs=3)
    return summarize(compare(world, RULES, PromptSet(world.prompt_ids), SETTING, jobs=1), world, SETTING, resamples=200)


class Page(HTMLParser):
    VOID = ("meta", "br", "line", "circle", "rect", "polyline", "path")

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.links: list[str] = []
        self.text: list[str] = []

    def handle_starttag(self, tag, attributes):
        if tag not in self.VOID:
            self.open.append(tag)
        self.links += [v for k, v in attributes if k in ("src", "href", "xlink:href") and v]

    def handle_startendtag(self, tag, attributes):
        self.handle_starttag(tag, attributes)
        if tag not in self.VOID:
            self.open.pop()

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.text.append(data)


def test_the_page_is_well_formed_and_self_contained(summary):
    html = render_page(summary)
    page = Page()
    page.feed(html)
    assert page.open == [] and page.links == []
    assert "http" not in html.split("<body>")[1] and "<script" not in html and "@import" not in html
    text = " ".join(page.text)
    assert headline(summary) in text
    for rule in RULES:
        assert label(rule) in text
    assert "nan" not in re.sub(r"[a-zA-Z]*nan[a-zA-Z]+", "", text.lower()) and "inf " not in text


def test_files_and_json(summary, tmp_path):
    files = write_report(summary, tmp_path)
    assert [f.name for f in files] == ["report.html", "report.json", "report.png"]
    assert files[2].read_bytes()[:8] == b"\x89PNG\r\n\x1a\n" and files[2].stat().st_size > 50_000
    data = json.loads(files[1].read_text())
    rows = data["rules"][data["headline_phase"]]
    assert {row["rule"] for row in rows} == {row.rule for row in summary.headline_rows}
    assert rows[0]["ratio"]["estimate"] == summary.headline_rows[0].ratio.estimate
    assert data["headline"] == headline(summary) and len(data["differences"]) == len(rows) * (len(rows) - 1) / 2
    for pair in data["differences"]:
        assert pair["shown"] != (pair["difference"]["low"] <= 0 <= pair["difference"]["high"])
    assert not [f for f in tmp_path.iterdir() if f.name.startswith(".")]


def test_no_words_of_praise_where_the_interval_holds_no_difference(summary):
    for phase in summary.phases:
        for row in summary.rows[phase]:
            if row.ratio.low <= 1.0 <= row.ratio.high:
                assert row.verdict == "no difference shown"
    first = [row for row in summary.rows["epoch 1"] if row.rule == "vip:beta"]
    assert first[0].verdict == "no difference shown"  # nothing is known of a prompt on its first visit
    assert "uniform" in "\n".join(text_table(summary))


def test_headline_without_a_winner():
    p = np.full(40, 0.5)
    world = PromptPool([f"q{q}" for q in range(40)], p, batch=20)
    rules = ["uniform", "inverse_variance:last_rate"]
    result = summarize(compare(world, rules, PromptSet(world.prompt_ids), SETTING, jobs=1), world, SETTING)
    assert headline(result).startswith("No rule is shown to need fewer rollouts")
    alone = summarize(compare(world, ["uniform"], PromptSet(world.prompt_ids), SETTING, jobs=1), world, SETTING)
    assert "nothing to compare" in headline(alone)
    render_page(alone)


def test_few_steps_are_said_and_praised_by_nobody(tmp_path):
    world = PromptPool([f"q{q}" for q in range(20)], np.linspace(0, 1, 20), batch=10)
    rules = ["uniform", "vip:beta", "dapo"]
    few = summarize(compare(world, rules, PromptSet(world.prompt_ids), SETTING, jobs=1), world, SETTING)
    assert {row.verdict for rows in few.rows.values() for row in rows} == {"no difference shown"}
    assert "too few steps" in headline(few) and "too few steps" in render_page(few)
    assert len(write_report(few, tmp_path)) == 3
    pairs = json.loads((tmp_path / "report.json").read_text())["differences"]
    assert all(pair["difference"]["low"] is None and not pair["shown"] for pair in pairs)
    assert "inf" not in re.sub("[a-z]*inf[a-z]+", "", "\n".join(text_table(few)))


def test_names_from_outside_are_escaped(summary):
    summary.notes = ["<b>&file"]
    summary.failures = {"vip:beta": "<script>alert(1)</script>"}
    html = render_page(summary)
    summary.notes, summary.failures = [], {}
    assert "<script>" not in html and "&lt;b&gt;&amp;file" in html


def test_small_pieces():
    assert ticks(0, 1, 5) == [0, 0.2, 0.4, 0.6, 0.8, 1.0] and ticks(1, 1) == [1]
    assert whole(-0.2) == "0" and whole(float("inf")) == "–" and whole(1390.4) == "1,390"
    assert label("vip:beta+guard") == "VIP, discounted Beta, guarded"
    assert Interval(0.5, 0.4, 0.6).excludes(0.7)


def test_a_log_whose_groups_are_all_dead_says_so():
    log = VisitLog.build([1, 2], np.array(["a", "a"], dtype=object), [0, 8], [8, 8])
    world = RecordedLog(log)
    comparison = compare(world, ["uniform"], PromptSet(world.prompt_ids), SETTING, jobs=1)
    with pytest.raises(ValueError, match="no group of the run has both outcomes"):
        summarize(comparison, world, SETTING)


@pytest.fixture(scope="module")
def browser():
    with open_browser() as opened:
        yield opened


@pytest.mark.parametrize("width", [1280, 400])
@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_looks(browser, summary, tmp_path, width, dark):
    page = tmp_path / "report.html"
    page.write_text(render_page(summary))
    browser.open(page, width, dark=dark)
    assert page_faults(browser, width) == []
    background = browser.evaluate("getComputedStyle(document.body).backgroundColor")
    assert (background == "rgb(255, 255, 255)") != dark
    browser.screenshot(tmp_path / "shot.png")
    assert (tmp_path / "shot.png").stat().st_size > 40_000


@pytest.mark.parametrize("width", [1280, 400])
def test_a_report_of_few_steps_fits_too(browser, tmp_path, width):
    world = PromptPool([f"q{q}" for q in range(20)], np.linspace(0, 1, 20), batch=10)
    few = summarize(compare(world, RULES, PromptSet(world.prompt_ids), SETTING, jobs=1), world, SETTING)
    page = tmp_path / "report.html"
    page.write_text(render_page(few))
    browser.open(page, width)
    assert page_faults(browser, width) == []


def test_prints(browser, summary, tmp_path):
    page = tmp_path / "report.html"
    page.write_text(render_page(summary))
    browser.open(page, 1280, dark=True)
    browser.pdf(tmp_path / "report.pdf")
    pdf = (tmp_path / "report.pdf").read_bytes()
    assert pdf[:5] == b"%PDF-" and 1 <= len(re.findall(rb"/Type\s*/Page\b", pdf)) <= 12
