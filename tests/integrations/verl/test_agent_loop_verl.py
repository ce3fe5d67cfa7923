"""Missing rewards in the agent loop worker, and the doctor's checks of the installed verl."""

from __future__ import annotations

import asyncio
import importlib
import math
import types
from typing import Any

import pytest

pytest.importorskip("verl.protocol")  # tests/integrations/verl alone would pass for a package "verl"
from verl.experimental.agent_loop.agent_loop import AgentLoopMetrics, AgentLoopOutput

from viprl.integrations.findings import report
from viprl.integrations.verl import agent_loop, contract, doctor

pytestmark = pytest.mark.verl


def output(tokens: list[int], mask: list[int] | None = None) -> AgentLoopOutput:
    return AgentLoopOutput(
        prompt_ids=[1],
        response_ids=tokens,
        response_mask=mask or [1] * len(tokens),
        num_turns=2,
        metrics=AgentLoopMetrics(),
        extra_fields={},
    )


@pytest.fixture
def worker(monkeypatch: pytest.MonkeyPatch) -> Any:
    """A worker without an actor; ``worker.reward`` is called with the graded tokens."""
    built = agent_loop._AdaptiveWorker.__new__(agent_loop._AdaptiveWorker)
    built.config = {}
    built.reward_loop_worker_handles = [object()]
    built.stored = []
    built.reward = lambda tokens: float(len(tokens))

    async def compute(self: Any, outputs: list[Any], kwargs: dict[str, Any]) -> None:
        if outputs[-1].reward_score is None:
            outputs[-1].reward_score = self.reward(outputs[-1].response_ids)
            outputs[-1].extra_fields["reward_extra_info"] = {"acc": 1}

    async def postprocess(self: Any, output: Any, validate: bool, **kwargs: Any) -> None:
        await self._compute_score([output], kwargs=kwargs)
        self.stored.append(output)

    parent = agent_loop._AdaptiveWorker.__mro__[1]
    monkeypatch.setattr(parent, "_compute_score", compute)
    monkeypatch.setattr(parent, "_agent_loop_postprocess", postprocess)
    return built


def process(worker: Any, out: AgentLoopOutput, validate: bool = False) -> AgentLoopOutput:
    asyncio.run(worker._agent_loop_postprocess(out, validate, uid="u", session_id=0))
    return worker.stored[-1]


def raises(tokens: list[int]) -> float:
    raise ZeroDivisionError("broken")


def test_a_reward_passes_through(worker: Any) -> None:
    stored = process(worker, output([5, 6, 7]))
    assert stored.reward_score == 3.0
    assert stored.extra_fields["reward_extra_info"] == {"acc": 1}
    assert float(stored.as_dict()["rm_scores"].sum()) == 3.0


@pytest.mark.parametrize("reward", [lambda tokens: None, lambda tokens: math.nan, raises], ids=["none", "nan", "raise"])
def test_missing_rewards_become_nan_rows(worker: Any, reward: Any) -> None:
    worker.reward = reward
    stored = process(worker, output([5, 6]))
    scores = stored.as_dict()["rm_scores"]  # verl leaves this field out where the reward is None
    assert math.isnan(float(scores.sum()))
    assert "reward_extra_info" in stored.extra_fields


def test_a_raising_reward_function_is_reported_once(worker: Any, caplog: pytest.LogCaptureFixture) -> None:
    worker.reward = raises
    with caplog.at_level("ERROR", logger="viprl"):
        for _ in range(3):
            process(worker, output([5]))
    assert caplog.text.count("the reward function raised") == 1
    assert "ZeroDivisionError" in caplog.text


def test_validation_keeps_verls_behaviour(worker: Any) -> None:
    worker.reward = raises
    with pytest.raises(ZeroDivisionError):
        process(worker, output([5]), validate=True)


def test_a_colocated_reward_model_scores_later(worker: Any) -> None:
    worker.reward, worker.reward_loop_worker_handles = (lambda tokens: None), None
    assert process(worker, output([5])).reward_score is None


@pytest.mark.parametrize("validate", [False, True])
def test_only_own_tokens_are_graded_on_request(worker: Any, validate: bool) -> None:
    seen: list[list[int]] = []
    worker.reward = lambda tokens: float(len(seen.append(list(tokens)) or tokens))
    plain = process(worker, output([5, 6, 7], [1, 0, 1]), validate)
    worker.config = {"viprl": {"grade_own_tokens": True}}
    own = process(worker, output([5, 6, 7], [1, 0, 1]), validate)
    assert seen == [[5, 6, 7], [5, 7]]
    assert (plain.reward_score, own.reward_score) == (3.0, 2.0)
    assert own.response_ids == [5, 6, 7]
    assert own.extra_fields["reward_extra_info"] == {"acc": 1}


# ---------------------------------------------------------------- doctor


def test_verl_is_as_it_was_when_tested() -> None:
    assert contract.drift() == []


def test_drift_names_what_moved(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(contract, "SIGNATURES", {"verl.trainer.ppo.v1.trainer_base:register_trainer": ("title",)})
    monkeypatch.setattr(contract, "SOURCES", {"verl.trainer.main_ppo:run_ppo": ("no such text",), "verl:gone": ()})
    found = contract.drift()
    assert len(found) == 3
    assert "must take ('title',), but takes ('name',)" in found[0]
    assert "must contain 'no such text'" in found[1]
    assert "verl:gone is gone" in found[2]


def test_doctor_passes_here() -> None:
    findings = doctor.diagnose()
    assert [finding.name for finding in findings if not finding.ok] == []
    assert "all 9 checks passed" in report(findings)


def test_doctor_shows_the_import_error_that_verl_hides(monkeypatch: pytest.MonkeyPatch) -> None:
    real = importlib.import_module

    def broken(name: str, *args: Any) -> types.ModuleType:
        if name == doctor.ENTRY_POINT[2]:
            raise ImportError("libsomething.so: cannot open shared object file")
        return real(name, *args)

    monkeypatch.setattr(importlib, "import_module", broken)
    text = report(doctor.diagnose())
    assert "FAIL  import of the plugin" in text
    assert "libsomething.so" in text


def test_doctor_sees_a_disabled_plugin(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VERL_USE_EXTERNAL_PLUGINS", "other")
    assert [finding.name for finding in doctor.diagnose() if not finding.ok] == ["VERL_USE_EXTERNAL_PLUGINS"]
