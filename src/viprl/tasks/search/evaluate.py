"""Evaluation of a model on a search benchmark: rollouts, scores with intervals, transcripts."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from viprl.errors import InvalidInputError
from viprl.evaluation.intervals import Interval, bootstrap_interval, wilson_interval
from viprl.tasks.search.agent import Generate, LoopLimits, Rollout, run_rollouts
from viprl.tasks.search.protocol import SYSTEM_PROMPT
from viprl.tasks.search.questions import Question
from viprl.tasks.search.scores import score_rollout
from viprl.tasks.search.session import SearchSession
from viprl.tasks.search.transcripts import to_record, write_html, write_jsonl

COUNTS = ("searches", "own_tokens")


@dataclass(frozen=True)
class SearchEvaluation:
    """What an evaluation found.

    Attributes:
        measures: name -> estimate with its 95 % interval over questions: Wilson's for EM with one sample a question,
            else a bootstrap over questions (a question's samples are averaged first).
        events: event -> count over all rollouts (see `session.EVENTS`), and ``stop:...`` -> rollouts that ended so.
        rollouts, scores: of every rollout, question by question.
    """

    name: str
    measures: dict[str, Interval]
    events: dict[str, int]
    rollouts: list[Rollout] = field(repr=False)
    scores: list[dict[str, float]] = field(repr=False)

    def lines(self) -> list[str]:
        """The table that the command prints."""
        width = max(map(len, self.measures))
        rows = [
            f"{name:<{width}}  {value.estimate:8.3f}  [{value.low:.3f}, {value.high:.3f}]"
            for name, value in self.measures.items()
        ]
        questions = len({rollout.question.id for rollout in self.rollouts})
        head = f"{self.name}: {questions} questions, {len(self.rollouts)} rollouts, 95 % intervals over questions"
        noted = ", ".join(f"{name} {count}" for name, count in self.events.items() if count)
        return [head, *rows, f"events: {noted or 'none'}"]

    def write(self, folder: str | Path) -> list[Path]:
        """Write ``scores.json``, ``transcripts.jsonl`` and ``transcripts.html``; returns their paths."""
        target = Path(folder)
        target.mkdir(parents=True, exist_ok=True)
        records = [to_record(r, s) for r, s in zip(self.rollouts, self.scores, strict=True)]
        paths = [target / name for name in ("scores.json", "transcripts.jsonl", "transcripts.html")]
        summary = {
            "name": self.name,
            "measures": {n: [v.estimate, v.low, v.high] for n, v in self.measures.items()},
            "events": self.events,
        }
        paths[0].write_text(json.dumps(summary, indent=2) + "\n", encoding="utf-8")
        write_jsonl(paths[1], records)
        write_html(paths[2], records, title=self.name, summary=self.lines())
        return paths


def evaluate_search(
    generate: Generate,
    tokenizer: Any,
    questions: Sequence[Question],
    new_session: Callable[[], SearchSession],
    *,
    name: str = "search",
    samples: int = 1,
    k: int = 5,
    limits: LoopLimits | None = None,
    system_prompt: str | None = SYSTEM_PROMPT,
) -> SearchEvaluation:
    """Answer every question `samples` times and score the answers.

    Args:
        generate: continues token sequences (`agent.ModelGenerate` or your own).
        new_session: a fresh session for each rollout.
        k: cut of the retrieval scores; keep it equal to the session's top_k.
    """
    if not questions or samples < 1:
        raise InvalidInputError(
            f"at least one question and one sample are needed, but got ({len(questions)}, {samples})"
        )
    repeated = [question for question in questions for _ in range(samples)]
    rollouts = run_rollouts(generate, tokenizer, repeated, new_session, limits=limits, system_prompt=system_prompt)
    scores = [score_rollout(rollout, k=k) for rollout in rollouts]
    events: Counter[str] = Counter()
    for rollout in rollouts:
        events.update(rollout.session.events)
        events[f"stop:{rollout.stop}"] += 1
    return SearchEvaluation(name, _measures(scores, samples), dict(sorted(events.items())), rollouts, scores)


def _measures(scores: Sequence[dict[str, float]], samples: int) -> dict[str, Interval]:
    names = dict.fromkeys(name for row in scores for name in row)
    measures: dict[str, Interval] = {}
    for name in names:
        by_question = [
            np.mean([row[name] for row in scores[start : start + samples]])
            for start in range(0, len(scores), samples)
            if name in scores[start]
        ]
        if name == "em" and samples == 1:
            measures[name] = wilson_interval(float(np.sum(by_question)), len(by_question))
        else:
            measures[name] = bootstrap_interval(by_question)
    return measures
