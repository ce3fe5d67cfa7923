"""Rewards for search rollouts, in TRL's signature. Only what the model wrote itself is graded."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from viprl.errors import InvalidInputError
from viprl.evaluation.answers import exact_match, token_f1
from viprl.tasks.search.environment import session_of
from viprl.tasks.search.protocol import boxed_answer, parse_turn
from viprl.tasks.search.session import EVENTS

AnswerScore = Literal["em", "f1"]


@dataclass(frozen=True)
class Outcome:
    """What one rollout came to.

    Attributes:
        answer: content of the last \\boxed{} of the final turn's own text, outside reasoning and calls; None = none.
        well_formed: every turn closed its <think> and wrote readable calls, and the final turn answered.
    """

    answer: str | None
    well_formed: bool


def outcome(completion: Any) -> Outcome:
    """Read a completion: chat messages (assistant and tool turns), or the text of a single turn.

    Messages of any role but assistant are never looked at, so nothing that a passage says can score. A final turn that
    still calls the tool (the limits ended the rollout) has no answer.
    """
    if isinstance(completion, str):
        turn = parse_turn(completion)
        answer = None if turn.calls else boxed_answer(turn.content)
        return Outcome(answer, answer is not None and turn.thought_closed)
    turns = [message for message in completion if message.get("role") == "assistant"]
    if not turns or completion[-1].get("role") != "assistant":
        return Outcome(None, False)
    last = turns[-1]
    content, called, closed = _own_text(last)
    answer = None if called else boxed_answer(content)
    sound = all(_own_text(turn)[2] for turn in turns[:-1]) and closed
    return Outcome(answer, answer is not None and sound)


def _own_text(message: Mapping[str, Any]) -> tuple[str, bool, bool]:
    """(content, whether it calls, whether it is well formed) of one assistant message, parsed here or before."""
    content = str(message.get("content") or "")
    if "well_formed" in message:
        return content, bool(message.get("tool_calls")), bool(message["well_formed"])
    turn = parse_turn(content)
    called = bool(message.get("tool_calls")) or bool(turn.calls)
    return turn.content, called, turn.thought_closed and not any(call.error for call in turn.calls)


class SearchReward:
    """(1 - format_weight) x answer score + format_weight x well-formedness, in [0, 1].

    With exact match and no format weight the reward is binary and the usual predictors apply. Anything else is real:
    give the allocator a `viprl.RewardVariancePredictor` (Appendix E of the paper: Var R takes the place of p(1-p)).

    Args:
        answer: "em" (exact match) or "f1" (token F1), both over all accepted answers.
        format_weight: share of the reward for the format alone.
        gated: an answer counts only in a well-formed rollout.
        drop_outages: a rollout whose retriever failed gets None (missing) instead of a score, so that an outage
            teaches neither the policy nor the predictor.
    """

    def __init__(
        self,
        answer: AnswerScore = "em",
        *,
        format_weight: float = 0.0,
        gated: bool = False,
        drop_outages: bool = True,
    ) -> None:
        if answer not in ("em", "f1"):
            raise InvalidInputError(f"answer must be 'em' or 'f1', but got {answer!r}")
        if not 0 <= format_weight < 1:
            raise InvalidInputError(f"0 <= format_weight < 1 must hold, but got {format_weight}")
        self.answer: AnswerScore = answer
        self.format_weight, self.gated, self.drop_outages = format_weight, gated, drop_outages
        self.__name__ = f"search_{answer}"

    @property
    def reward_kind(self) -> Literal["binary", "real"]:
        """What the predictor has to expect."""
        return "binary" if self.answer == "em" and self.format_weight == 0 else "real"

    def score(self, completion: Any, answers: Sequence[str]) -> float:
        """Reward of one rollout."""
        result = outcome(completion)
        score = (exact_match if self.answer == "em" else token_f1)(result.answer, answers)
        if self.gated and not result.well_formed:
            score = 0.0
        return (1 - self.format_weight) * score + self.format_weight * result.well_formed

    def __call__(
        self,
        prompts: Sequence[Any] = (),
        completions: Sequence[Any] = (),
        *,
        answers: Sequence[Sequence[str]],
        environments: Sequence[Any] | None = None,
        log_metric: Any = None,
        **_: Any,
    ) -> list[float | None]:
        """One reward for each completion; logs the events of the step as means over its rollouts."""
        rewards: list[float | None] = [
            self.score(completion, gold) for completion, gold in zip(completions, answers, strict=True)
        ]
        sessions = [session_of(environment) for environment in environments or ()]
        if log_metric is not None:
            for name, value in step_metrics(completions, answers, sessions).items():
                log_metric(name, value)
        if self.drop_outages:
            for row, session in enumerate(sessions):
                if session is not None and session.outage:
                    rewards[row] = None
        return rewards


def step_metrics(
    completions: Sequence[Any], answers: Sequence[Sequence[str]], sessions: Sequence[Any]
) -> dict[str, float]:
    """Means over the rollouts of a step: scores, format, and every event of `EVENTS`."""
    outcomes = [outcome(completion) for completion in completions]
    count = max(len(outcomes), 1)
    metrics = {
        "search/em": sum(exact_match(o.answer, a) for o, a in zip(outcomes, answers, strict=True)) / count,
        "search/f1": sum(token_f1(o.answer, a) for o, a in zip(outcomes, answers, strict=True)) / count,
        "search/answered": sum(o.answer is not None for o in outcomes) / count,
        "search/well_formed": sum(o.well_formed for o in outcomes) / count,
    }
    known = [session for session in sessions if session is not None]
    for event in EVENTS if known else ():
        metrics[f"search/{event}"] = sum(session.events[event] for session in known) / len(known)
    return metrics
