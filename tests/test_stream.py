"""StreamAllocator: sizes at a price, an exact budget, tickets that are settled once, exact resumption."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import viprl
from viprl import DiscountedBeta, StreamAllocator
from viprl.errors import CheckpointError, ConfigurationError, InvalidInputError, PlanError, UnknownPromptError
from viprl.selection import Learnability, Top, Unbiased, UniformSelection

IDS = [f"q{i}" for i in range(200)]
RATES = dict(zip(IDS, np.random.default_rng(5).beta(0.5, 0.5, len(IDS)), strict=True))


def make(predictor: Any = None, model: Any = None, **settings: Any) -> StreamAllocator:
    settings = {"block": 16, **settings}
    return StreamAllocator(predictor or DiscountedBeta(), model or viprl.RLOO(), **settings)


def drive(stream: StreamAllocator, offers: int, *, seed: int = 0, flight: int = 8, start: int = 0) -> list[int]:
    """Offers in order, results in random order, ``flight`` tickets open."""
    rng, sizes = np.random.default_rng(seed), []
    open_: dict[int, tuple[str, int]] = {}
    for i in range(start, start + offers):
        prompt_id = IDS[(i * 37) % len(IDS)]
        n, ticket = stream.offer(prompt_id)
        sizes.append(n)
        if ticket is not None:
            open_[ticket] = (prompt_id, n)
        while len(open_) > flight:
            ticket = int(rng.choice(list(open_)))
            prompt_id, n = open_.pop(ticket)
            stream.settle(ticket, (rng.random(n) < RATES[prompt_id]).astype(float))
    for ticket, (prompt_id, n) in open_.items():
        stream.settle(ticket, (rng.random(n) < RATES[prompt_id]).astype(float))
    return sizes


def test_uncertain_prompts_get_more_and_the_mean_is_kept() -> None:
    stream = make()
    sizes = np.array(drive(stream, 1200))
    late = sizes[600:]
    spread = np.array([RATES[IDS[(i * 37) % len(IDS)]] for i in range(600, 1200)])
    spread = spread * (1 - spread)
    assert abs(late.mean() - 8) < 0.08
    assert late[spread > 0.2].mean() > 1.3 * late[spread < 0.02].mean()
    assert (spread / (late - 1)).sum() < 0.93 * (spread / 7).sum()
    assert late.min() >= 3 and late.max() <= 32 and stream.metrics()["viprl/variance_ratio"] < 1


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("selection", [None, Top(), Learnability(), UniformSelection()])
def test_the_budget_is_kept_over_any_offers(selection: Any, seed: int) -> None:
    candidates = 1 if selection is None else 3
    stream = make(mean_group_size=6, candidates=candidates, selection=selection)
    debt = np.concatenate([[0.0], np.cumsum(np.array(drive(stream, 900, seed=seed)) - 6 / candidates)])
    assert np.abs(debt).max() <= 2.5 * 6 + 1e-9
    assert debt.max() - debt.min() <= 0.01 * 500 * 6 + 1e-9
    assert stream.metrics()["viprl/budget_debt"] == pytest.approx(debt[-1])


def test_a_fractional_mean_is_met() -> None:
    for policy in (None, viprl.Uniform()):
        sizes = np.array(drive(make(mean_group_size=4.5, policy=policy), 800))
        assert abs(sizes.sum() - 4.5 * 800) <= 2.5 * 4.5
        assert policy is None or set(sizes.tolist()) == {4, 5}


def test_the_price_follows_another_mix_of_prompts() -> None:
    """Dead prompts first, then lively ones, then both: two hundred offers after a change the sizes are settled."""
    predictor = DiscountedBeta()
    kinds = {"dead": (0, 40), "lively": (20, 40)}
    ids = [f"{kind}{i}" for kind in kinds for i in range(1000)]
    predictor.observe(ids, *np.array([kinds[i.rstrip("0123456789")] for i in ids]).T)
    stream = make(predictor, guard=False)
    phases = [[f"dead{i}" for i in range(600)], [f"lively{i}" for i in range(600)]]
    phases.append([f"{kind}{i}" for i in range(600, 900) for kind in kinds])
    for phase in phases:
        sizes = np.array([stream.offer(i).group_size for i in phase])
        settled = sizes[200:]
        assert abs(settled.mean() - 8) < 0.1
        if phase is not phases[2]:
            assert settled.std() < 1
        else:
            assert settled[1::2].mean() > 10 and settled[0::2].mean() < 6 and settled[1::2].std() < 1.5


def test_selection_leaves_the_dead_out() -> None:
    predictor = DiscountedBeta()
    predictor.observe([f"dead{i}" for i in range(300)], np.zeros(300), np.full(300, 40))
    predictor.observe([f"lively{i}" for i in range(200)], np.full(200, 20), np.full(200, 40))
    stream = make(predictor, candidates=2, selection=Top(floor=0.1), guard=False)
    sizes = {k: [stream.offer(f"{k}{i}").group_size for i in range(200)] for k in ("lively", "dead")}
    mixed = [f"{k}{i}" for i in range(100) for k in ("dead", "lively", "dead")]
    sizes = {k: [] for k in sizes}
    for i in mixed:
        sizes["dead" if i.startswith("d") else "lively"].append(stream.offer(i).group_size)
    assert np.mean(np.array(sizes["dead"]) > 0) < 0.15 and np.mean(np.array(sizes["lively"]) > 0) > 0.9
    assert "Left out, worth" in stream.explain("dead0") and "at the price of" in stream.explain("lively0")
    with pytest.raises(ConfigurationError, match="must be one of top, learnability, uniform"):
        make(candidates=2, selection=Unbiased())


def test_what_was_left_out_counts_as_a_candidate_once() -> None:
    stream = make(candidates=4, selection=Top())
    sizes = drive(stream, 640)
    stream.learn()
    rows = stream.history_rows()
    assert len(rows) == sum(n > 0 for n in sizes) and not stream.history_rows()
    assert {row["kept_for"] for row in rows} <= {"value", "exploration", "rest", "uniform"}
    assert {row["prompt_id"] for row in rows} <= set(IDS) and rows[-1]["step"] > 3
    per_block = {row["step"]: row["candidates"] for row in rows}
    assert 500 < sum(per_block.values()) <= 640


def test_tickets_are_settled_once() -> None:
    stream = make()
    n, ticket = stream.offer("q1")
    other = stream.offer("q2").ticket
    assert ticket is not None and other is not None and stream.in_flight == (ticket, other)
    with pytest.raises(InvalidInputError, match="at most its planned rollouts"):
        stream.settle(ticket, [1.0] * (n + 1))
    with pytest.raises(InvalidInputError, match="for a predictor of success probabilities"):
        stream.settle(ticket, [0.3] * n)
    assert "In flight: ticket 0" in stream.explain("q1")
    stream.settle(ticket, [1.0, None])
    stream.abandon(other)
    for gone in (ticket, other):
        with pytest.raises(PlanError, match="was settled or abandoned before"):
            stream.settle(gone, [1.0])
    with pytest.raises(PlanError, match="was never given by this stream"):
        stream.abandon(7)
    stream.learn()
    assert stream.in_flight == () and stream.metrics()["viprl/missing_rewards"] == n - 1
    assert stream.metrics()["viprl/abandoned"] == 1


def test_reward_values_are_found_across_tickets() -> None:
    stream = make()
    first, second = (stream.offer(f"q{i}").ticket for i in range(2))
    stream.settle(first, [1.0, -1.0])
    with pytest.raises(InvalidInputError, match="rewards must be -1 or 1"):
        stream.settle(second, [0.0, 1.0])
    stream.settle(second, [-1.0, -1.0])


def test_successes_come_always_or_never() -> None:
    stream = make()
    first, second = (stream.offer(f"q{i}").ticket for i in range(2))
    stream.settle(first, [0.5, 1.5], successes=[0, 1])
    with pytest.raises(InvalidInputError, match="with every ticket or with none"):
        stream.settle(second, [0.0, 1.0])
    stream.settle(second, [0.0, 1.2], successes=[0, 1])
    stream.learn()
    assert [row["successes"] for row in stream.history_rows()] == [1.0, 1.0]


def test_a_prompt_is_learnt_before_it_is_offered_again() -> None:
    stream = make(block=1000)
    n, ticket = stream.offer("q0")
    stream.settle(ticket, [0.0] * n)
    assert "no rollouts of its own" in stream.explain("q0")
    stream.offer("q0")
    assert "with history of its own" in stream.explain("q0")


def test_old_results_count_less() -> None:
    means = []
    for age in (0, 1, 16, 1000):
        stream = make(version_drift=0.1)
        n, ticket = stream.offer("q0")
        for _ in range(age):
            stream.policy_updated()
        stream.settle(ticket, [1.0] * n)
        stream.learn()
        means.append(stream._learner.predict(["q0"]).mean[0])
    assert means[0] > means[1] > means[2] > means[3] > 0.4
    with pytest.raises(InvalidInputError, match="must not go back"):
        stream.policy_updated(3)
    ticket = stream.offer("q1").ticket
    with pytest.raises(InvalidInputError, match="up to version 1000"):
        stream.settle(ticket, [1.0], version=1001)
    stream.policy_updated(1005)
    assert stream.abandon_older(5) == () and stream.abandon_older(4) == (ticket,)


def test_advantages_weigh_prompts_alike() -> None:
    stream = make(model=viprl.DrGRPO(), mean_group_size=6)
    n, ticket = stream.offer("q0")
    rewards = [1.0, 0.0, None] + [0.0] * (n - 3)
    plain = stream.advantages(ticket, rewards, prompt_weighting="rollout")
    assert plain[:3] == pytest.approx([1 - 1 / (n - 1), -1 / (n - 1), 0.0])
    assert stream.advantages(ticket, rewards) == pytest.approx(plain * 6 / (n - 1))
    with pytest.raises(InvalidInputError, match="must be one of"):
        stream.advantages(ticket, rewards, prompt_weighting="some")
    stream.settle(ticket, rewards)
    with pytest.raises(PlanError):
        stream.advantages(ticket, rewards)


@pytest.mark.parametrize("selection", [None, Learnability()])
def test_a_restored_stream_continues_bit_for_bit(selection: Any, tmp_path: Path) -> None:
    settings = {"candidates": 1 if selection is None else 3, "selection": selection}
    stream = make(**settings)
    drive(stream, 300)
    flying = [(t, n, i) for i in IDS[:9] for n, t in [stream.offer(i)] if t is not None]
    stream.policy_updated()
    stream.settle(flying[0][0], [1.0, 0.0])
    stream.save(tmp_path / "stream")
    copy = StreamAllocator.load(tmp_path / "stream", DiscountedBeta(), viprl.RLOO(), block=16, **settings)
    for s in (stream, copy):
        for ticket, n, _ in flying[1:]:
            s.settle(ticket, [1.0] + [0.0] * (n - 1))
    a, b = (drive(s, 300, seed=1, start=300) for s in (stream, copy))
    assert a == b
    stream.save(tmp_path / "a")
    copy.save(tmp_path / "b")
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()
    with pytest.raises(CheckpointError, match="must be of a stream with"):
        StreamAllocator.load(tmp_path / "stream", DiscountedBeta(), viprl.RLOO(), mean_group_size=9, **settings)
    with pytest.raises(CheckpointError, match="predictor"):
        StreamAllocator.load(tmp_path / "stream", viprl.LastRate(), viprl.RLOO(), **settings)


def test_the_state_of_an_allocator_is_refused(tmp_path: Path) -> None:
    viprl.RolloutAllocator(DiscountedBeta(), viprl.RLOO()).save(tmp_path / "allocator")
    with pytest.raises(CheckpointError, match="must be of a stream"):
        StreamAllocator.load(tmp_path / "allocator", DiscountedBeta(), viprl.RLOO())


def test_threads_share_a_stream() -> None:
    stream, taken = make(), []

    def work(k: int) -> None:
        rng = np.random.default_rng(k)
        for i in range(150):
            prompt_id = IDS[(i * 7 + k * 13) % len(IDS)]
            n, ticket = stream.offer(prompt_id)
            taken.append(ticket)
            if i % 10 == 9:
                stream.abandon(ticket)
            else:
                stream.settle(ticket, (rng.random(n) < RATES[prompt_id]).astype(float))

    threads = [threading.Thread(target=work, args=(k,)) for k in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    stream.learn()
    assert sorted(taken) == list(range(900)) and stream.in_flight == ()
    assert len(stream.history_rows()) == 900 - 90


def test_an_outage_is_not_learnt() -> None:
    stream = make()
    drive(stream, 1600)
    steady = [i for i in IDS if stream._learner.predict([i]).mean[0] > 0.9][:40]
    before = stream._learner.predict(steady).mean
    for prompt_id in steady:
        n, ticket = stream.offer(prompt_id)
        stream.settle(ticket, [0.0] * n)
    stream.learn()
    assert stream.metrics()["viprl/quarantined"] == 1
    assert stream._learner.predict(steady).mean == pytest.approx(before)


class Wrong(DiscountedBeta):
    """Believes the opposite of what it should: sure of the uncertain, unsure of the sure."""

    def belief(self, prompt_id: Any) -> Any:
        found = super().belief(prompt_id)
        return found._replace(reward_variance=0.3 - found.reward_variance)


def test_the_guard_holds_a_harmful_price() -> None:
    stream = make(Wrong())
    free = make(Wrong(), guard=False)
    for s in (stream, free):
        sizes = np.array(drive(s, 2400))
    assert stream.metrics()["viprl/guard"] == 1 and "The guard holds" in stream.explain("q0")
    assert set(drive(stream, 100)) == {8} and len(set(sizes[-100:].tolist())) > 3
    assert stream.metrics()["viprl/policy_realised_variance_ratio"] > 1.02


@pytest.mark.parametrize("model", [viprl.GRPO(), viprl.OutcomeMoments(), viprl.DrGRPO()])
def test_any_variance_model(model: Any) -> None:
    sizes = np.array(drive(make(model=model), 500))
    assert abs(sizes.sum() - 4000) <= 20 and sizes[300:].std() > 0.5


def test_real_rewards() -> None:
    predictor = viprl.RewardVariancePredictor()
    stream = StreamAllocator(predictor, viprl.RLOO(), block=16)
    rng, sizes = np.random.default_rng(0), {"wide": [], "narrow": []}
    for i in range(600):
        kind = ("wide", "narrow")[i % 2]
        n, ticket = stream.offer(f"{kind}{i % 50}")
        sizes[kind].append(n)
        stream.settle(ticket, rng.normal(0, 2.0 if kind == "wide" else 0.1, n))
    assert np.mean(sizes["wide"][200:]) > 1.5 * np.mean(sizes["narrow"][200:])


def test_a_stream_is_built_from_settings() -> None:
    prompts = viprl.PromptSet(["a", "b"], texts=["1+1=", "12345*6789="])
    stream = viprl.build_stream(prompts, viprl.AllocationSettings(candidates=2, estimator="grpo"), mean_group_size=6)
    assert "groups of 3 to 24, 6 on average" in repr(stream) and "RelativeGRPO" in repr(stream)
    assert "groups of 2 to 8, 2 on average" in repr(viprl.build_stream(prompts, mean_group_size=2))
    for wrong, words in (({"budget": 64}, "mean_group_size"), ({"policy": "relaxed"}, "'vip' or 'uniform'")):
        with pytest.raises(ConfigurationError, match=words):
            viprl.build_stream(prompts, viprl.AllocationSettings(**wrong))
    with pytest.raises(ConfigurationError, match="gradient norms"):
        viprl.build_stream(prompts, viprl.AllocationSettings(variance="learned"))


def test_what_cannot_be_is_refused() -> None:
    for wrong in ({"mean_group_size": 2}, {"block": 0}, {"candidates": 0}, {"policy": "vip"}, {"version_drift": -1}):
        with pytest.raises(InvalidInputError):
            make(**wrong)
    with pytest.raises(UnknownPromptError):
        make(DiscountedBeta(["a"])).offer("b")
