import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from viprl.tasks.search.protocol import boxed_answer, parse_call, parse_turn, query_of


def call(text):
    found = parse_call(text)
    assert len(found) == 1
    return found[0]


CLEAN = '{"name": "search", "arguments": {"query": "capital of France"}}'


def test_a_clean_turn():
    turn = parse_turn(f"<think>\nI must search.\n</think>\nLet me look.\n<tool_call>\n{CLEAN}\n</tool_call><|im_end|>")
    assert (turn.reasoning, turn.content, turn.thought_closed) == ("I must search.", "Let me look.", True)
    (found,) = turn.calls
    assert (found.name, found.arguments, found.error, found.repaired) == (
        "search",
        {"query": "capital of France"},
        None,
        False,
    )


@pytest.mark.parametrize(
    "text",
    [
        "{'name': 'search', 'arguments': {'query': 'capital of France'}}",
        '```json\n{"name": "search", "arguments": {"query": "capital of France"}}\n```',
        '{"name": "search", "arguments": {"query": "capital of France"},}',
        '{"name": "search", "arguments": {"query": "capital of France"}',
        '{"name": "search", "arguments": {"query": "capital of France',
        '{"name": "search", "arguments": {"query": "capital of France"}}}',
        'search: {"name": "search", "arguments": {"query": "capital of France"}} done',
        '{"name": "search", "arguments": "{\\"query\\": \\"capital of France\\"}"}',
        '{"name": "search", "arguments": "capital of France"}',
        '{"name": "search", "query": "capital of France"}',
        "{“name”: “search”, “arguments”: {“query”: “capital of France”}}",
    ],
)
def test_repairable_calls(text):
    found = call(text)
    assert found.error is None and found.name == "search" and found.repaired
    assert query_of(found.arguments) == ["capital of France"]


@pytest.mark.parametrize(
    "text",
    [
        '{"name": "search", "parameters": {"query": "x"}}',
        '{"function": {"name": "search", "arguments": {"query": "x"}}, "type": "function"}',
        '{"name": "search", "arguments": {"query_list": ["x"]}}',
    ],
)
def test_other_spellings(text):
    assert query_of(call(text).arguments) == ["x"] and call(text).error is None


@pytest.mark.parametrize(
    "text", ["", "   ", "search capital", "{", "[]", "[1]", "null", "3", '{"name": 3}', "{}", "{" * 5000]
)
def test_hopeless_calls_have_an_error(text):
    assert all(found.error for found in parse_call(text))


def test_several_calls():
    turn = parse_turn(f"<tool_call>{CLEAN}</tool_call><tool_call>[{CLEAN}, {CLEAN}]</tool_call>")
    assert len(turn.calls) == 3


def test_unclosed_call_and_unclosed_thought():
    turn = parse_turn(f"<think>hm <tool_call>{CLEAN}")
    assert turn.calls[0].error is None and not turn.thought_closed and turn.reasoning == "hm"


def test_calls_inside_thoughts_are_only_talk():
    turn = parse_turn(f"<think>I could write <tool_call>{CLEAN}</tool_call> now</think>\\boxed{{4}}")
    assert turn.calls == ()


def test_template_that_opens_the_thought():
    assert parse_turn("reasons</think> \\boxed{4}", thinking=True).content == "\\boxed{4}"
    assert parse_turn("reasons</think> \\boxed{4}").reasoning == "reasons"
    assert not parse_turn("reasons \\boxed{4}", thinking=True).content


def test_invented_results_are_dropped():
    turn = parse_turn("<tool_response>\\boxed{fake}</tool_response>so")
    assert turn.content == "so"


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("\\boxed{4}", "4"),
        ("first \\boxed{1} then \\boxed{ 2 }", "2"),
        ("\\boxed{a{b}{c{d}}e}", "a{b}{c{d}}e"),
        ("\\boxed {x}", "x"),
        ("\\boxed{ok} \\boxed{cut", "ok"),
        ("\\boxed{}", ""),
        ("\\boxed", None),
        ("\\boxed 4", None),
        ("", None),
        ("\\boxed{日本}", "日本"),
    ],
)
def test_boxed_answer(text, answer):
    assert boxed_answer(text) == answer


@settings(max_examples=200, deadline=None)
@given(st.text(alphabet=st.characters(codec=None), max_size=80), st.integers(0, 6))
def test_nothing_that_a_model_writes_raises(text, cut):
    pieces = ["<tool_call>", "</tool_call>", "<think>", "</think>", "\\boxed{", '{"name": "search", "arguments":']
    parse_turn(text[:40] + "".join(pieces[cut:]) + text[40:] + "".join(pieces[:cut]))


@settings(max_examples=100, deadline=None)
@given(st.text(max_size=60))
def test_any_query_survives(query):
    body = json.dumps({"name": "search", "arguments": {"query": query}})
    if "<tool_call>" in query or "</tool_call>" in query:
        return
    (found,) = parse_turn(f"<tool_call>{body}</tool_call>").calls
    assert found.arguments == {"query": query} and not found.repaired
