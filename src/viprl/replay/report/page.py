"""report.html."""

from __future__ import annotations

from html import escape
from typing import Any

from viprl.replay.lineup import parse_rule, source_of
from viprl.replay.report.charts import ratio_chart, reliability_charts, spending_chart
from viprl.replay.report.tables import calibration_table, cost_bars, rules_table
from viprl.replay.saving import saving_lines
from viprl.replay.summary import Summary
from viprl.replay.wording import headline, label
from viprl.reports.pages import facts, page, warnings
from viprl.reports.svg import figure

PROTOCOLS = {
    "log": "recorded run, replayed with every recorded rollout known",
    "resample": "recorded run, each rule learning only from the rollouts it asked for",
    "pool": "simulated passes over prompts with known success rates",
    "drift": "simulated prompts whose success rates drift",
}
ESTIMATORS = {"rloo": "RLOO", "dr_grpo": "Dr. GRPO", "grpo": "GRPO, normalised by the deviation"}
PHASES = {
    "later": "Steps whose prompts were all met before",
    "first visits": "Steps with prompts met for the first time",
}


def render_page(summary: Summary) -> str:
    """The whole page as HTML."""
    title = "Rollout replay"
    head = f'<h1>{title}</h1><p class="headline">{escape(headline(summary))}</p>{_facts(summary)}{_warnings(summary)}'
    return page(title, f"{head}{_results(summary)}{_charts(summary)}{_explanation(summary)}")


def _facts(summary: Summary) -> str:
    world, setting = summary.world, summary.setting
    low, high = setting["min_group_size"], setting["max_group_size"]
    items = [
        ("Protocol", PROTOCOLS.get(str(world["protocol"]), str(world["protocol"]))),
        ("Prompts", f"{world['prompts']:,}"),
        ("Steps", f"{world['steps']:,}"),
        ("Rollouts a prompt, on average", f"{world['mean_group_size']:.3g}"),
        ("Group sizes allowed", f"{low} to {high} rollouts"),
        ("Estimator", ESTIMATORS.get(setting["estimator"], setting["estimator"])),
        ("Random seeds", ", ".join(map(str, summary.seeds))),
    ]
    if world.get("outage"):
        items.append(("Outage put in", f"{world['outage'][1]} steps from step position {world['outage'][0]}"))
    if world.get("events"):
        items.append(("Events", "; ".join(world["events"])))
    return facts(items)


def _warnings(summary: Summary) -> str:
    texts = []
    if summary.interrupted:
        texts.append("The replay was interrupted: only the rules that were finished are here.")
    texts += [f"{label(rule)} did not run: {why}" for rule, why in summary.failures.items()]
    return warnings(texts)


def _results(summary: Summary) -> str:
    phase = summary.headline_phase
    best = summary.best_ratio[phase]
    lead = (
        f"{PHASES.get(phase, f'Phase: {phase}')}. Variance of the batch gradient relative to equal groups with as many "
        f"rollouts; 95% intervals from resampled steps. An allocation by {_best_words(summary)} "
        f"would reach {best:.3f}. The dots stand on a logarithmic scale from 0.5 to 3 whose tick is uniform."
    )
    parts = [f'<h2>Who needs fewer rollouts</h2><p class="lead">{escape(lead)}</p>{rules_table(summary, phase)}']
    for other in summary.phases[:-1]:
        name = PHASES.get(other, f"Phase: {other}")
        text = f"{name} ({summary.best_name}: {summary.best_ratio[other]:.3f})"
        parts.append(f"<details><summary>{escape(text)}</summary>{rules_table(summary, other)}</details>")
    if summary.saving is not None:
        found = "".join(f"<p>{escape(line)}</p>" for line in saving_lines(summary.saving))
        parts.append(f"<h2>What selecting prompts would have saved</h2>{found}")
    return "".join(parts)


def _best_words(summary: Summary) -> str:
    if summary.best_name == "oracle":
        return "the true success rates (oracle)"
    return "each prompt's other visits, earlier and later (hindsight)"


def _charts(summary: Summary) -> str:
    calibration = calibration_table(summary)
    return (
        "<h2>Gradient variance over the run</h2>"
        '<p class="lead">Relative to uniform groups, averaged over a twentieth of the run; below 1.0 is better.</p>'
        f"{figure(ratio_chart(summary))}"
        "<h2>Who got the rollouts</h2>"
        '<p class="lead">Mean rollouts of a prompt in a step, by the prompt&#39;s success rate.</p>'
        f"{figure(spending_chart(summary))}"
        "<h2>How good the predictions were</h2>"
        '<p class="lead">Observed success rate of the visits that a predictor gave the same chance; on the dashed line '
        "it is right. Larger dots hold more visits.</p>"
        f"{reliability_charts(summary)}"
        '<p class="lead">Log loss and Brier score per rollout, lower is better. The constant is the best one in '
        "hindsight. Differences are shown with 95% intervals; below zero is better.</p>"
        f"{calibration}"
        "<h2>What deciding costs</h2>"
        '<p class="lead">Mean time of a step for predicting, allocating and learning, on this machine.</p>'
        f"{cost_bars(summary)}"
    )


def _explanation(summary: Summary) -> str:
    terms: list[tuple[str, Any]] = [
        ("Gradient variance", "Sum over the step's prompts of p(1-p) f(n): f is the estimator's variance as a function "
         "of the group size n. A prompt left without a gradient is charged p(1-p), the most that leaving it out can "
         "cost. A rule that uses more rollouts than the budget is compared with uniform groups that use as many."),
        ("Rollouts saved", "Share of the rollouts that could be dropped while keeping the variance of uniform groups."),
        ("Gap closed", f"Share of the way from uniform to the {summary.best_name} allocation; negative when worse than "
         "uniform."),
        ("Live groups", "Expected groups with both outcomes, per rollout, relative to uniform."),
        ("Signal left out", "Share of the summed p(1-p) that belongs to prompts which get no gradient."),
        ("Better, worse", "Said only where the 95% interval of the paired difference excludes no difference. Each "
         "interval is for one comparison; among many, about one in twenty errs."),
        ("Rounds inside the step", "GVM, VIGOR, Pilot-Commit look at rollouts before they spend the rest. On a "
         "recorded log they see at most all but two rollouts of a visit and are scored by the others."),
    ]  # fmt: skip
    items = "".join(f"<dt>{escape(name)}</dt><dd>{escape(text)}</dd>" for name, text in terms)
    notes = "".join(f"<li>{escape(note)}</li>" for note in summary.notes)
    reading = f"<h2>Reading the log</h2><ul>{notes}</ul>" if notes else ""
    rules = "".join(
        f"<dt>{escape(label(row.rule))}</dt><dd>{escape(source_of(parse_rule(row.rule)))}</dd>"
        for row in summary.headline_rows
    )
    return (
        f'<section class="foot"><h2>What the words mean</h2><dl>{items}</dl>'
        f"<h2>Where the rules come from</h2><dl>{rules}</dl>{reading}</section>"
    )
