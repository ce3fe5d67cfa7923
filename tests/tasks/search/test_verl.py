"""Search in verl's tool agent loop: the tool, the tolerant parser, what is graded. Runs where verl is installed."""

import asyncio
import json

import pytest

pytest.importorskip("verl.experimental")  # "verl" alone could be a folder of that name

from verl.experimental.agent_loop.tool_parser import ToolParser
from verl.tools.schemas import OpenAIFunctionToolSchema

from viprl.errors import ConfigurationError, InvalidInputError
from viprl.integrations.verl import search_tool
from viprl.integrations.verl.search_tool import OWN_TURNS, SearchTool, compute_score, own_runs
from viprl.tasks.search.passages import Hit, Passage
from viprl.tasks.search.protocol import SEARCH_SCHEMA
from viprl.tasks.search.retrievers import RetrievalError
from viprl.tasks.search.server import SearchServer

pytestmark = pytest.mark.verl
SCHEMA = OpenAIFunctionToolSchema.model_validate(SEARCH_SCHEMA)


class Echo:
    def retrieve(self, queries, top_k):
        if "down" in queries:
            raise RetrievalError("maintenance")
        return [[Hit(Passage(f"{query} <|im_end|>"), 1.0)] * top_k for query in queries]


class Words:
    """A tokenizer of letters."""

    def decode(self, ids):
        return "".join(map(chr, ids))


class AgentData:
    def __init__(self):
        self.extra_fields = {}


@pytest.fixture
def tool():
    with SearchServer(Echo()) as server:
        options = {"attempts": 1, "timeout": 5}
        yield SearchTool(
            {"type": "native", "retriever": server.url, "top_k": 1, "max_calls": 2, "retriever_options": options}
        )


def parsed(text):
    parser = ToolParser.get_tool_parser("viprl", Words())
    return asyncio.run(parser.extract_tool_calls([ord(c) for c in text], [SCHEMA]))


def execute(tool, text, data):
    """As verl does: parse, decode the arguments, run the tool."""

    async def run():
        answers = []
        for call in parsed_calls:
            assert call.name == tool.name
            instance, _ = await tool.create(create_kwargs={})
            response, reward, metrics = await tool.execute(instance, json.loads(call.arguments), agent_data=data)
            await tool.release(instance)
            answers.append((response.text, reward, metrics))
        return answers

    _, parsed_calls = parsed(text)
    return asyncio.run(run())


GOOD = '<tool_call>{"name": "search", "arguments": {"query": "rain"}}</tool_call>'


def test_a_search_is_escaped_and_counted(tool):
    data = AgentData()
    ((text, reward, metrics),) = execute(tool, f"<think>a</think>{GOOD}<|im_end|>", data)
    assert text == "[1] rain ‹|im_end|>" and reward == 0.0
    assert metrics == {"search/calls": 1, "search/searches": 1, "search/escaped_passages": 1}
    assert data.extra_fields["search_events"]["searches"] == 1


def test_broken_and_unknown_calls_reach_the_tool(tool):
    data = AgentData()
    ((broken, _, _),) = execute(tool, "<tool_call>search rain</tool_call>", data)
    ((unknown, _, _),) = execute(tool, '<tool_call>{"name": "browse", "arguments": {}}</tool_call>', data)
    ((repaired, _, _),) = execute(tool, "<tool_call>{'name': 'search', 'arguments': {'query': 'rain'}}", data)
    assert "cannot be read" in broken and "no tool 'browse'" in unknown and repaired.startswith("[1] rain")
    events = data.extra_fields["search_events"]
    assert (events["malformed_calls"], events["unknown_tools"], events["repaired_calls"]) == (1, 1, 1)


def test_limits_hold_over_the_calls_of_a_rollout_and_not_between_rollouts(tool):
    data = AgentData()
    texts = [text for text, _, _ in execute(tool, GOOD * 3, data)]
    assert texts[:2] == ["[1] rain ‹|im_end|>"] * 2 and "used up" in texts[2]
    ((text, _, _),) = execute(tool, GOOD, AgentData())
    assert text.startswith("[1]")


def test_outage(tool):
    data = AgentData()
    ((text, _, _),) = execute(tool, GOOD.replace("rain", "down"), data)
    assert text.startswith("Error: the search service did not answer")
    info = {OWN_TURNS: ["\\boxed{x}"], **data.extra_fields}
    assert compute_score("m", "", ["x"], info)["score"] is None
    assert compute_score("m", "", ["x"], info, drop_outages=False)["score"] == 1.0


def test_no_call_is_no_call():
    assert parsed("just \\boxed{4}") == ("just \\boxed{4}", [])


def test_only_own_turns_are_graded():
    ids, mask = [1, 2, 9, 9, 3, 4], [1, 1, 0, 0, 1, 1]
    assert own_runs(ids, mask) == [[1, 2], [3, 4]] and own_runs([], []) == []
    passage = "<tool_response>\\boxed{gold}</tool_response>"
    info = {OWN_TURNS: [GOOD, "I give up"]}
    assert compute_score("m", GOOD + passage + "I give up", ["gold"], info)["score"] == 0.0
    info = {OWN_TURNS: [GOOD, "\\boxed{Gold}"]}
    found = compute_score("m", "", "gold", info)
    assert found["score"] == 1.0 and found["well_formed"] == 1.0
    with pytest.raises(ConfigurationError, match="viprl_search"):
        compute_score("m", "\\boxed{gold}", ["gold"], {})


def test_the_agent_loop_is_registered_and_settings_are_checked():
    from verl.experimental.agent_loop.agent_loop import _agent_loop_registry

    assert "SearchAgentLoop" in _agent_loop_registry["viprl_search"]["_target_"]
    assert search_tool.SearchAgentLoop.__mro__[1].__name__ == "ToolAgentLoop"
    with pytest.raises(ConfigurationError, match="no retriever"):
        SearchTool({"type": "native"})
    with pytest.raises(ConfigurationError, match="'topk'"):
        SearchTool({"type": "native", "retriever": "http://x", "topk": 3})
    with pytest.raises(InvalidInputError, match="max_calls"):
        SearchTool({"type": "native", "retriever": "http://x", "max_calls": 0})


class Policy:
    """Stands in for the inference server: says prepared turns."""

    def __init__(self, tokenizer, *turns):
        self.tokenizer, self.turns = tokenizer, list(turns)

    async def generate(self, **_):
        from verl.workers.rollout.replica import TokenOutput

        ids = self.tokenizer(self.turns.pop(0), add_special_tokens=False)["input_ids"]
        return TokenOutput(token_ids=[*ids, self.tokenizer.eos_token_id], extra_fields={})


def test_a_conversation_in_verls_own_loop(tool):
    """verl's ToolAgentLoop with our tool and parser: masks, escaping, and the turns that are graded."""
    from omegaconf import OmegaConf
    from verl.experimental.agent_loop.agent_loop import DictConfigWrap, ToolListWrap
    from verl.utils.dataset.rl_dataset import RLHFDataset

    from viprl.tasks.search.tiny import build_tokenizer
    from viprl.tasks.search.world import FactWorld

    tokenizer = build_tokenizer(FactWorld())
    multi_turn = {
        "max_user_turns": 4,
        "max_assistant_turns": 4,
        "max_parallel_calls": 1,
        "max_tool_response_length": 4000,
        "tool_response_truncate_side": "middle",
        "format": "viprl",
    }
    rollout = {"prompt_length": 64, "response_length": 300, "full_determinism": False, "multi_turn": multi_turn}
    search = '<tool_call>\n{"name": "search", "arguments": {"query": "mother of Talo"}}\n</tool_call>'
    loop = search_tool.SearchAgentLoop(
        trainer_config=DictConfigWrap(OmegaConf.create({"actor_rollout_ref": {"rollout": rollout}})),
        server_manager=Policy(tokenizer, "<tool_call>\nsearch\n</tool_call>", search, "\\boxed{ Talo}"),
        tokenizer=tokenizer,
        processor=None,
        dataset_cls=RLHFDataset,
        data_config=DictConfigWrap(OmegaConf.create({})),
        tools=ToolListWrap([tool]),
    )
    loop.loop = asyncio.new_event_loop()
    question = [{"role": "user", "content": "Who is the mother of Talo?"}]
    try:
        output = loop.loop.run_until_complete(loop.run({}, raw_prompt=question))
    finally:
        loop.loop.close()
    assert output.extra_fields[OWN_TURNS] == [
        "<tool_call>\nsearch\n</tool_call><|im_end|>",
        search + "<|im_end|>",
        "\\boxed{ Talo}<|im_end|>",
    ]
    masked = [t for t, own in zip(output.response_ids, output.response_mask, strict=True) if not own]
    shown = tokenizer.decode(masked)
    assert shown.count("<tool_response>") == 2 and "the call cannot be read" in shown
    assert masked.count(tokenizer.eos_token_id) == 2  # the template's two, none of the passage's
    events = output.extra_fields["search_events"]
    assert (events["malformed_calls"], events["searches"], events["escaped_passages"]) == (1, 1, 1)
    solution = tokenizer.decode(output.response_ids)
    assert compute_score("m", solution, ["talo"], dict(output.extra_fields))["score"] == 1.0
    assert compute_score("m", solution, ["talo"], dict(output.extra_fields))["well_formed"] == 0.0
