"""Search in verl: the tool, a parser that lets broken calls reach it, an agent loop that knows the model's own words,
and the reward.

Tool configuration (``actor_rollout_ref.rollout.multi_turn.tool_config_path``):

    tools:
      - class_name: viprl.integrations.verl.search_tool.SearchTool
        config:
          type: native
          retriever: http://127.0.0.1:8000      # or bm25 / dense:MODEL with corpus: FILE
          top_k: 5

Agent loop (``rollout.agent.agent_loop_config_path``, with ``rollout.agent.default_agent_loop: viprl_search``):

    - name: viprl_search
      _target_: viprl.integrations.verl.search_tool.SearchAgentLoop

Reward: ``reward.custom_reward_function``: this file's `compute_score`, with the arguments of `SearchReward` as
``reward_kwargs``. Set ``multi_turn.format: viprl`` and raise ``multi_turn.max_tool_response_length``: verl cuts results
to 256 characters by default.

verl's own parser ("hermes") drops calls that are not clean JSON, which ends the rollout in silence; ours hands them to
the tool, which answers with what was wrong and counts it. verl decodes results together with the model's words before
it scores them; `SearchAgentLoop` keeps the words of mask = 1 apart, and only those are graded.
"""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, fields
from typing import Any

from verl.experimental.agent_loop.agent_loop import AgentLoopOutput, register
from verl.experimental.agent_loop.tool_agent_loop import ToolAgentLoop
from verl.experimental.agent_loop.tool_parser import FunctionCall, ToolParser
from verl.tools.base_tool import BaseTool
from verl.tools.schemas import OpenAIFunctionToolSchema, ToolResponse

from viprl.errors import ConfigurationError
from viprl.tasks.search.escape import Escaper
from viprl.tasks.search.indexes import build_retriever
from viprl.tasks.search.protocol import SEARCH_SCHEMA, TOOL_NAME, ToolCall, parse_turn
from viprl.tasks.search.retrievers import Retriever
from viprl.tasks.search.rewards import SearchReward, outcome
from viprl.tasks.search.session import EVENTS, SearchLimits, SearchSession

OWN_TURNS = "own_turns"
EVENTS_FIELD = "search_events"
BROKEN = "viprl_broken_call"  # argument that carries a call which could not be read, or names no known tool
_OPTIONS = ("type", "retriever", "corpus", "retriever_options", "special_tokens")


class SearchTool(BaseTool):  # type: ignore[misc]
    """One object per worker; the session of a rollout lives in verl's `agent_data.extra_fields`.

    verl makes and releases a tool instance for every single call, so limits on calls could not be kept there.

    Config: ``retriever``, ``corpus``, ``retriever_options`` (see `build_retriever`), ``special_tokens`` (more strings
    to escape than ``<|...|>`` and the protocol's tags), and the fields of `SearchLimits`.

    Raises:
        ConfigurationError: an unknown or missing option.
    """

    def __init__(self, config: dict[str, Any], tool_schema: OpenAIFunctionToolSchema | None = None) -> None:
        limits = {field.name for field in fields(SearchLimits)} - {"max_response_tokens"}
        unknown = sorted(set(config) - set(_OPTIONS) - limits)
        if unknown or "retriever" not in config:
            raise ConfigurationError(
                f"the search tool needs `retriever` and takes {sorted({*_OPTIONS, *limits})}, but got "
                + (f"{unknown[0]!r}" if unknown else "no retriever")
            )
        super().__init__(config, tool_schema or OpenAIFunctionToolSchema.model_validate(SEARCH_SCHEMA))
        if self.name != TOOL_NAME:
            raise ConfigurationError(f"the search tool's name must be {TOOL_NAME!r}, but got {self.name!r}")
        self.limits = SearchLimits(**{name: config[name] for name in limits if name in config})
        self.escaper = Escaper(config.get("special_tokens") or ())
        self.retriever: Retriever = build_retriever(
            config["retriever"], config.get("corpus"), **(config.get("retriever_options") or {})
        )

    async def execute(
        self, instance_id: str, parameters: dict[str, Any], **kwargs: Any
    ) -> tuple[ToolResponse, float, dict[str, Any]]:
        """Answer one call; never raises for anything the model or a server did.

        Returns:
            The text for the model, a step reward of 0, and this call's events.
        """
        session = self._session(kwargs.get("agent_data"))
        before = Counter(session.events)
        call = ToolCall(**parameters[BROKEN]) if BROKEN in parameters else ToolCall(TOOL_NAME, parameters)
        text = await asyncio.get_running_loop().run_in_executor(None, session.call, call)
        news = {f"search/{name}": count for name, count in (session.events - before).items()}
        extra = getattr(kwargs.get("agent_data"), "extra_fields", None)
        if isinstance(extra, dict):
            extra[EVENTS_FIELD] = dict(session.events)
        return ToolResponse(text=text), 0.0, news

    def _session(self, agent_data: Any) -> SearchSession:
        extra = getattr(agent_data, "extra_fields", None)
        held = getattr(agent_data, "_viprl_search", None)
        if isinstance(held, SearchSession):
            return held
        session = SearchSession(self.retriever, limits=self.limits, escaper=self.escaper)
        if extra is not None:
            agent_data._viprl_search = session
        return session


@ToolParser.register("viprl")
class TolerantToolParser(ToolParser):  # type: ignore[misc]
    """Calls in <tool_call> tags, read as `protocol.parse_turn` reads them everywhere else."""

    async def extract_tool_calls(
        self, responses_ids: list[int], tools: Sequence[OpenAIFunctionToolSchema] | None = None
    ) -> tuple[str, list[FunctionCall]]:
        """Content without calls, and the calls; what cannot be read becomes a call of the search tool with an error."""
        text = await asyncio.get_running_loop().run_in_executor(None, self.tokenizer.decode, responses_ids)
        turn = parse_turn(text)
        if not turn.calls:
            return text, []
        known = {tool.function.name for tool in tools or ()}
        return turn.content, [_function_call(call, known) for call in turn.calls]


def _function_call(call: ToolCall, known: set[str]) -> FunctionCall:
    plain = call.error is None and call.name in known and not (call.name == TOOL_NAME and call.repaired)
    name, arguments = (call.name, call.arguments) if plain else (TOOL_NAME, {BROKEN: asdict(call)})
    return FunctionCall(name=name, arguments=json.dumps(arguments))


@register("viprl_search")
class SearchAgentLoop(ToolAgentLoop):  # type: ignore[misc]
    """verl's tool agent loop; adds the model's own turns to the rollout's extra fields, for `compute_score`."""

    async def run(self, sampling_params: dict[str, Any], **kwargs: Any) -> AgentLoopOutput:
        output = await super().run(sampling_params, **kwargs)
        runs = own_runs(output.response_ids, output.response_mask)
        output.extra_fields[OWN_TURNS] = [self.tokenizer.decode(ids) for ids in runs]
        return output


def own_runs(ids: Sequence[int], mask: Sequence[int]) -> list[list[int]]:
    """The runs of tokens with mask = 1, one for each turn of the model."""
    runs: list[list[int]] = []
    before = 0
    for token, own in zip(ids, mask, strict=True):
        if own:
            if not before:
                runs.append([])
            runs[-1].append(int(token))
        before = own
    return runs


def compute_score(
    data_source: str, solution_str: str, ground_truth: Any, extra_info: dict[str, Any] | None = None, **settings: Any
) -> dict[str, Any]:
    """verl's custom reward function: `SearchReward` on the model's own turns.

    Args:
        solution_str: not used: it holds the passages too, and their words must never score.
        ground_truth: the accepted answers: a list, or one string.
        settings: of `SearchReward`.

    Returns:
        ``score`` (None where the retriever failed and ``drop_outages`` holds) and numbers for verl's metrics.

    Raises:
        ConfigurationError: the rollout did not come from the agent loop ``viprl_search``.
    """
    info = extra_info or {}
    if OWN_TURNS not in info:
        raise ConfigurationError(
            "search rewards need rollout.agent.default_agent_loop=viprl_search, but the rollout has no own turns"
        )
    reward = SearchReward(**settings)
    answers = [ground_truth] if isinstance(ground_truth, str) else [str(answer) for answer in ground_truth]
    messages = [{"role": "assistant", "content": text} for text in info[OWN_TURNS]]
    events = info.get(EVENTS_FIELD) or {}
    result = outcome(messages)
    score: float | None = reward.score(messages, answers)
    if reward.drop_outages and events.get("retrieval_errors"):
        score = None
    return {
        "score": score,
        "answered": float(result.answer is not None),
        "well_formed": float(result.well_formed),
        **{f"search_{name}": float(events.get(name, 0)) for name in EVENTS},
    }
