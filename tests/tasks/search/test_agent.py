"""The loop outside trainers, the evaluation and its transcripts, with scripted generations."""

import json

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")
pytest.importorskip("bm25s")

from viprl.errors import InvalidInputError
from viprl.tasks.search.agent import LoopLimits, ModelGenerate, prompt_ids, question_messages, run_rollouts
from viprl.tasks.search.bm25 import BM25Retriever
from viprl.tasks.search.evaluate import evaluate_search
from viprl.tasks.search.session import SearchLimits, SearchSession
from viprl.tasks.search.tiny import WarmStart, build_model, build_tokenizer, collate, render, warm_start
from viprl.tasks.search.transcripts import write_html, write_jsonl
from viprl.tasks.search.world import FactWorld, demonstrate

WORLD = FactWorld(people=12)
RETRIEVER = BM25Retriever(WORLD.passages)
CALL = '<tool_call>\n{"name": "search", "arguments": {"query": "mother of Talo"}}\n</tool_call>'


@pytest.fixture(scope="module")
def tokenizer():
    return build_tokenizer(WORLD)


def new_session():
    return SearchSession(RETRIEVER, limits=SearchLimits(top_k=2, max_calls=3))


class Scripted:
    """Plays one list of turns for each question; `end` = False leaves the last turn without its end token."""

    def __init__(self, tokenizer, scripts, end=True):
        self.tokenizer, self.scripts, self.end, self.turn = tokenizer, [list(s) for s in scripts], end, 0

    def __call__(self, sequences, max_new_tokens):
        self.live = [s for s in self.scripts if s]
        assert len(self.live) == len(sequences)
        said = [self.tokenizer(s.pop(0), add_special_tokens=False)["input_ids"] for s in self.live]
        return [ids + [self.tokenizer.eos_token_id] * self.end for ids in said]


def play(tokenizer, *scripts, end=True, **limits):
    questions = WORLD.questions(1)[: len(scripts)]
    return run_rollouts(
        Scripted(tokenizer, scripts, end),
        tokenizer,
        questions,
        new_session,
        limits=LoopLimits(**limits),
        system_prompt=None,
    )


def test_how_rollouts_end(tokenizer):
    stops = [
        r.stop
        for r in play(tokenizer, [CALL, "\\boxed{ Talo}"], ["of"], [CALL] * 4, [CALL, CALL, "\\boxed{ x}"], max_turns=4)
    ]
    assert stops == ["answered", "no_answer", "turn_limit", "answered"]
    assert play(tokenizer, ["of of"], end=False)[0].stop == "cut_off"
    (full,) = play(tokenizer, [CALL, CALL, CALL], max_tokens=100)
    assert full.stop == "token_limit" and len(full.token_ids) <= 100


def test_mask_and_tokens_are_those_of_the_template(tokenizer):
    (rollout,) = play(tokenizer, [CALL, "\\boxed{ Talo}"])
    messages = [
        {"role": "user", "content": rollout.question.question},
        {"role": "assistant", "content": CALL},
        {"role": "tool", "name": "search", "content": rollout.messages[1]["content"]},
        {"role": "assistant", "content": "\\boxed{ Talo}"},
    ]
    whole = tokenizer.apply_chat_template(messages, tokenize=True, return_dict=False)
    assert rollout.prompt_ids + rollout.token_ids == whole[: len(whole) - 1]  # the line break after the last end token
    own = [t for t, m in zip(rollout.token_ids, rollout.mask, strict=True) if m]
    assert tokenizer.decode(own) == CALL + "<|im_end|>\\boxed{ Talo}<|im_end|>"


def test_demonstrations_render_like_rollouts(tokenizer):
    question = WORLD.questions(2)[0]
    turns = demonstrate(question, WORLD, None, None)
    assert len(turns) == 3 and question.answers[0] in turns[-1]
    rendered = render(tokenizer, question, turns, new_session())
    (played,) = run_rollouts(
        Scripted(tokenizer, [turns]), tokenizer, [question], new_session, system_prompt=None, limits=LoopLimits()
    )
    assert (rendered.token_ids, rendered.mask) == (played.token_ids, played.mask)
    inputs, attention, labels = collate([rendered], tokenizer.pad_token_id)
    assert int((labels != -100).sum()) == sum(rendered.mask) and int(attention.sum()) == inputs.numel()


def test_model_generation_and_a_little_learning(tokenizer):
    model = build_model(tokenizer, layers=1, hidden=32)
    sequences = [prompt_ids(tokenizer, question_messages(q.question, None)) for q in WORLD.questions(2)[:3]]
    sequences.append(sequences[0][:7])
    greedy = ModelGenerate(model, tokenizer, temperature=0, batch_size=2)
    together, alone = greedy(sequences, 8), [greedy([s], 8)[0] for s in sequences]
    assert together == alone and all(0 < len(ids) <= 8 for ids in together)
    losses = []
    recipe = WarmStart(one_hop_steps=25, clean_steps=25, erring_steps=0, worlds=1, questions=20, batch_size=8)
    warm_start(model, tokenizer, WORLD, recipe, progress=lambda step, steps, loss: losses.append((step, steps, loss)))
    assert [row[:2] for row in losses] == [(10, 50), (20, 50), (35, 50), (45, 50)]
    assert losses[-1][2] < losses[0][2] < 4.9  # from log 120 = 4.8


def test_evaluation_and_transcripts(tokenizer, tmp_path):
    questions = WORLD.questions(1)[:4]
    golds = [q.answers[0] for q in questions]
    right = [f"{CALL[:-29]}x</tool_call>" for _ in golds]
    scripts = [[CALL, f"<think> of of</think>\\boxed{{ {golds[0]}}}"], ["of"], [CALL] * 6, [right[3], "\\boxed{ x}"]]
    found = evaluate_search(
        Scripted(tokenizer, scripts), tokenizer, questions, new_session, name="toy", k=2, system_prompt=None
    )
    assert found.measures["em"].estimate == 0.25
    assert found.measures["em"].low < 0.25 < found.measures["em"].high
    assert {"answer_f1", "answer_precision", "retrieval_f1@2", "retrieval_precision@2"} <= set(found.measures)
    assert found.events["stop:turn_limit"] == 1 and found.events["call_limit_hits"] == 2
    paths = found.write(tmp_path / "out")
    records = [json.loads(line) for line in paths[1].read_text().splitlines()]
    assert [r["scores"]["em"] for r in records] == [1, 0, 0, 0]
    assert records[0]["searches"][0]["passages"]
    page = paths[2].read_text()
    assert "mother of Talo" in page and "of of</div>" in page and golds[0] in page
    assert json.loads(paths[0].read_text())["measures"]["em"][0] == 0.25
    assert "4 questions, 4 rollouts" in found.lines()[0]


def test_pages_show_what_models_wrote_as_text(tmp_path):
    hostile = "<script>alert(1)</script> & \ud800"
    record = {
        "id": hostile,
        "question": hostile,
        "answers": [hostile],
        "answer": None,
        "stop": "answered",
        "scores": {"em": 0.0},
        "messages": [
            {"role": "assistant", "content": hostile, "reasoning_content": hostile, "tool_calls": [{"raw": hostile}]},
            {"role": "tool", "content": hostile},
        ],
        "events": {"calls": 1},
    }
    write_html(tmp_path / "p.html", [record], title=hostile, summary=[hostile])
    page = (tmp_path / "p.html").read_text()
    assert "<script" not in page and page.count("&lt;script&gt;") == 10
    write_jsonl(tmp_path / "p.jsonl", [record])
    assert (tmp_path / "p.jsonl").read_text().count("\n") == 1


def test_samples_are_averaged_by_question(tokenizer):
    questions = WORLD.questions(1)[:2]
    answers = [f"\\boxed{{ {q.answers[0]}}}" for q in questions]
    scripts = [[answers[0]], ["of"], [answers[1]], [answers[1]]]
    found = evaluate_search(
        Scripted(tokenizer, scripts), tokenizer, questions, new_session, samples=2, system_prompt=None
    )
    assert found.measures["em"].estimate == 0.75 and len(found.rollouts) == 4
    with pytest.raises(InvalidInputError, match="at least one question"):
        evaluate_search(Scripted(tokenizer, []), tokenizer, [], new_session)


def test_world_questions():
    train, test = WORLD.split(40, 20)
    assert not {q.id for q in train} & {q.id for q in test}
    assert sum(len(q.hops) == 2 for q in train) == 30
    question = WORLD.question(("mother", "boss"), WORLD.persons[0])
    middle = WORLD.facts["mother", WORLD.persons[0]]
    assert question.question == f"Who is the boss of the mother of {WORLD.persons[0]}?"
    assert question.answers == (WORLD.facts["boss", middle],)
    assert FactWorld(seed=1).facts != FactWorld(seed=2).facts == FactWorld(seed=2).facts
    by_id = {p.id: p for p in WORLD.passages}
    assert [by_id[i].title for i in question.supporting] == [WORLD.persons[0], middle]
    with pytest.raises(InvalidInputError, match="world has"):
        WORLD.split(10_000, 1)
