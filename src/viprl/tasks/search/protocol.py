"""The conversation's format: reasoning in <think>, calls as JSON in <tool_call>, the answer in \\boxed{}.

Parsing is tolerant where the intention is clear (code fences, single quotes, trailing commas, a missing brace or
closing tag, arguments as a JSON string) and says what is wrong where it is not: a call that cannot be read is still a
call, with an error, so the model gets an answer to learn from.
"""

from __future__ import annotations

import ast
import json
import re
from dataclasses import dataclass, field
from typing import Any

TOOL_NAME = "search"
SYSTEM_PROMPT = (
    "You answer questions with the help of a search tool. Think step by step between <think> and </think>. "
    "To look something up, write a call between <tool_call> and </tool_call> as a JSON object, for example\n"
    '<tool_call>\n{"name": "search", "arguments": {"query": "capital of France"}}\n</tool_call>\n'
    "and wait: the passages found come back between <tool_response> and </tool_response>. You may search several "
    "times. When you know the answer, write it, as short as possible, in \\boxed{} at the end."
)
SEARCH_SCHEMA: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": TOOL_NAME,
        "description": "Search the corpus for passages.",
        "parameters": {
            "type": "object",
            "properties": {"query": {"type": "string", "description": "What to look for."}},
            "required": ["query"],
        },
    },
}

_CALL = re.compile(r"<tool_call>(.*?)(?:</tool_call>|(?=<tool_call>)|\Z)", re.DOTALL)
_RESPONSE = re.compile(r"<tool_response>.*?(?:</tool_response>|\Z)", re.DOTALL)
_THINK = re.compile(r"<think>(?:((?:(?!<think>).)*?)</think>|(.*?)(?:(?=<tool_call>)|\Z))", re.DOTALL)
_END = re.compile(r"(?:<\|im_end\|>|<\|endoftext\|>|<\|eot_id\|>|</s>)\s*\Z")
_FENCE = re.compile(r"\A```[a-zA-Z]*\s*|\s*```\Z")
_ARGUMENT_NAMES = ("arguments", "parameters", "args", "params", "input")
_QUERY_NAMES = ("query", "queries", "query_list", "q", "question", "search_query", "text", "keywords")


@dataclass(frozen=True)
class ToolCall:
    """One call as the model wrote it. Where `error` is set, name and arguments are what could be understood."""

    name: str = ""
    arguments: dict[str, Any] = field(default_factory=dict)
    error: str | None = None
    repaired: bool = False
    raw: str = ""


@dataclass(frozen=True)
class Turn:
    """One assistant turn, taken apart.

    Attributes:
        reasoning: text inside <think>, joined.
        content: the rest, without reasoning and calls.
        calls: in the order written.
        thought_closed: every <think> has its </think>.
    """

    reasoning: str
    content: str
    calls: tuple[ToolCall, ...]
    thought_closed: bool


def parse_turn(text: str, *, thinking: bool = False) -> Turn:
    """Take a turn apart.

    Args:
        text: what the model generated in one turn, special tokens kept or not.
        thinking: the template already opened <think> for the model.

    A call inside a closed <think> block is only talk and does not count. A <think> that a call or the end cuts short is
    closed there. What the model itself wrote between <tool_response> tags is an invention and is dropped.
    """
    while _END.search(text):
        text = _END.sub("", text)
    if thinking and not text.lstrip().startswith("<think>"):
        text = "<think>" + text
    elif "</think>" in text and "<think>" not in text.split("</think>", 1)[0]:
        text = "<think>" + text
    text = _RESPONSE.sub("", text)
    all_closed = text.count("<think>") <= text.count("</think>")
    reasoning = "\n".join((closed or cut).strip() for closed, cut in _THINK.findall(text)).strip()
    rest = _THINK.sub("", text)
    calls = tuple(call for body in _CALL.findall(rest) for call in parse_call(body))
    content = _CALL.sub("", rest).replace("</tool_call>", "").replace("</think>", "").strip()
    return Turn(reasoning, content, calls, all_closed)


def parse_call(body: str) -> list[ToolCall]:
    """The calls inside one <tool_call> block: usually one, several where the model wrote a list."""
    raw = body.strip()
    value, repaired = _decode(raw)
    if value is None:
        problem = "it is empty" if not raw else "it is not JSON"
        return [ToolCall(error=f"the call cannot be read: {problem}", raw=raw)]
    items = value if isinstance(value, list) else [value]
    if not items or len(items) > 32:
        return [ToolCall(error=f"a call must hold 1 to 32 calls, but has {len(items)}", raw=raw)]
    return [_call(item, raw, repaired) for item in items]


def query_of(arguments: dict[str, Any]) -> list[str] | None:
    """The search queries in a call's arguments, under the usual names; None where there is none."""
    for name in _QUERY_NAMES:
        value = arguments.get(name)
        if isinstance(value, str | int | float) and not isinstance(value, bool):
            return [str(value)]
        if isinstance(value, list) and value and all(isinstance(item, str) for item in value):
            return list(value)
    return None


def boxed_answer(text: str) -> str | None:
    """Content of the last complete \\boxed{...} (braces may nest), or None."""
    start = text.rfind("\\boxed")
    while start >= 0:
        brace = start + len("\\boxed")
        while brace < len(text) and text[brace] == " ":
            brace += 1
        if brace < len(text) and text[brace] == "{":
            content = _braced(text, brace)
            if content is not None:
                return content.strip()
        start = text.rfind("\\boxed", 0, start)
    return None


def _braced(text: str, opening: int) -> str | None:
    depth = 0
    for position in range(opening, len(text)):
        if text[position] == "{":
            depth += 1
        elif text[position] == "}":
            depth -= 1
            if depth == 0:
                return text[opening + 1 : position]
    return None


def _call(item: Any, raw: str, repaired: bool) -> ToolCall:
    if isinstance(item, dict) and isinstance(item.get("function"), dict):
        item = item["function"]
    if not isinstance(item, dict):
        return ToolCall(error="a call must be a JSON object with name and arguments", raw=raw)
    name = item.get("name")
    if not isinstance(name, str) or not name.strip():
        return ToolCall(error='a call needs a "name"', raw=raw)
    found = next((item[key] for key in _ARGUMENT_NAMES if item.get(key) is not None), None)
    if found is None:
        rest = {key: value for key, value in item.items() if key not in ("name", "id", "type", *_ARGUMENT_NAMES)}
        return ToolCall(name.strip(), rest, repaired=repaired or bool(rest), raw=raw)
    if isinstance(found, str):
        decoded, _ = _decode(found)
        found, repaired = (decoded, True) if isinstance(decoded, dict) else ({"query": found}, True)
    if not isinstance(found, dict):
        return ToolCall(name.strip(), error='"arguments" must be a JSON object', raw=raw)
    return ToolCall(name.strip(), {str(key): value for key, value in found.items()}, repaired=repaired, raw=raw)


def _decode(raw: str) -> tuple[Any, bool]:
    """Value of `raw` and whether it had to be repaired; (None, True) where nothing helps."""
    try:
        return json.loads(raw), False
    except (ValueError, RecursionError):
        pass
    for candidate in _repairs(raw):
        try:
            return json.loads(candidate, strict=False), True
        except (ValueError, RecursionError):
            pass
        try:
            value = ast.literal_eval(candidate)  # single quotes, True/None, trailing commas
        except (ValueError, SyntaxError, MemoryError, RecursionError):
            continue
        if isinstance(value, dict | list):
            return value, True
    return None, True


def _repairs(raw: str) -> list[str]:
    """Likelier readings of a broken call, the least change first. Long input is not repaired: it costs time."""
    if len(raw) > 20_000:
        return []
    text = _FENCE.sub("", raw.strip()).strip()
    text = text.translate({0x201C: '"', 0x201D: '"', 0x2018: "'", 0x2019: "'"}) if '"' not in text else text
    opening = min((i for i in (text.find("{"), text.find("[")) if i >= 0), default=-1)
    if opening < 0:
        return []
    text = text[opening:]
    candidates = [text, re.sub(r",\s*([}\]])", r"\1", text)]
    try:  # an object followed by more words or a brace too many
        candidates.append(text[: json.JSONDecoder(strict=False).raw_decode(text)[1]])
    except (ValueError, RecursionError):
        pass
    return [*candidates, _balanced(text)]


def _balanced(text: str) -> str:
    """Close an open string and the open braces."""
    stack: list[str] = []
    quoted = escaped = False
    for character in text:
        if quoted:
            if escaped:
                escaped = False
            elif character == "\\":
                escaped = True
            elif character == '"':
                quoted = False
        elif character == '"':
            quoted = True
        elif character in "{[":
            stack.append("}" if character == "{" else "]")
        elif character in "}]" and stack:
            stack.pop()
    return text + ('"' if quoted else "") + "".join(reversed(stack))
