"""One rule for prompt ids."""

from __future__ import annotations

import hashlib

import numpy as np
import pytest

from viprl.errors import ConfigurationError, InvalidInputError
from viprl.prompts.ids import canonical_text, choose_rule, content_hash, plain_text, resolve_prompt_ids


def test_hash_is_pinned():
    """Stored histories and checkpoints name prompts by this hash: it must never change."""
    assert content_hash("What is 2+3?") == hashlib.sha256(b"What is 2+3?").hexdigest()[:16] == "f574924a4d93e5f1"
    chat = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "What is 2+3?"}]
    text = '[["system","Be brief."],["user","What is 2+3?"]]'
    assert canonical_text(chat) == text
    assert content_hash(chat) == hashlib.sha256(text.encode()).hexdigest()[:16]


def test_same_prompt_written_differently():
    assert content_hash("caf\u00e9 \r\nx") == content_hash("  cafe\u0301 \nx\n")
    as_text = [{"role": "user", "content": "hi"}]
    as_block = [{"content": [{"type": "text", "text": "hi", "image": None}], "role": "user", "name": None}]
    assert content_hash(as_text) == content_hash(as_block) == content_hash(tuple(as_text))


def test_different_prompts_differ():
    prompts = [
        "a",
        "A",
        [{"role": "user", "content": "a"}],
        [{"role": "system", "content": "a"}],
        [{"role": "user", "content": "a"}, {"role": "user", "content": ""}],
        [{"role": "user", "content": [{"type": "image", "image": np.zeros(3)}, {"type": "text", "text": "a"}]}],
        [{"role": "user", "content": [{"type": "image", "image": np.ones(3)}, {"type": "text", "text": "a"}]}],
        [{"role": "user", "content": [{"type": "image", "image": b"1"}, {"type": "text", "text": "a"}]}],
    ]
    assert len({content_hash(p) for p in prompts}) == len(prompts)


@pytest.mark.parametrize("prompt", [None, 3, [], {"role": "user"}, ["a"], [{"content": "a"}]])
def test_not_a_prompt(prompt):
    with pytest.raises(InvalidInputError):
        content_hash(prompt)


def row(prompt, **extra):
    return {"prompt": prompt, **extra}


def test_configured_column_wins():
    rows = [row("a", key=7, extra_info={"prompt_id": "x"}), row("b", key=8, extra_info={"prompt_id": "y"})]
    assert resolve_prompt_ids(rows, id_column="key") == ["7", "8"]
    with pytest.raises(ConfigurationError, match="columns: "):
        resolve_prompt_ids(rows, id_column="missing")
    with pytest.raises(InvalidInputError, match="column 'key'"):
        resolve_prompt_ids([row("a", key=None)], id_column="key")


def test_extra_info_then_index_then_content():
    assert resolve_prompt_ids([row("a", extra_info={"prompt_id": 1}), row("b", extra_info={"prompt_id": 2})]) == [
        "1",
        "2",
    ]
    indexed = [row("a", data_source="gsm8k", extra_info={"index": i}) for i in range(2)]
    assert resolve_prompt_ids(indexed) == ["gsm8k/0", "gsm8k/1"]
    assert resolve_prompt_ids([row("a", data_source="s", index=0), row("b", data_source="t", index=0)]) == [
        "s/0",
        "t/0",
    ]
    assert resolve_prompt_ids([row("a"), row("b")]) == [content_hash("a"), content_hash("b")]


def test_an_id_that_names_two_prompts_is_not_used():
    clash = [row("a", extra_info={"prompt_id": 1}), row("b", extra_info={"prompt_id": 1})]
    assert resolve_prompt_ids(clash) == [content_hash("a"), content_hash("b")]
    # the same prompt twice under one id is no clash
    assert resolve_prompt_ids([row("a", extra_info={"prompt_id": 1})] * 2) == ["1", "1"]


def test_one_row_without_the_field_falls_back_for_all():
    rows = [row("a", extra_info={"prompt_id": 1}), row("b", extra_info={"prompt_id": None})]
    assert resolve_prompt_ids(rows) == [content_hash("a"), content_hash("b")]


def test_same_text_shares_an_id():
    assert len(set(resolve_prompt_ids([row("same "), row("same")]))) == 1


def test_stream_uses_content():
    assert choose_rule(()).kind == "content"
    with pytest.raises(InvalidInputError, match="prompt"):
        choose_rule(()).id_of({"question": "x"})


def test_plain_text():
    assert plain_text("a") == "a"
    chat = [
        {"role": "system", "content": None},
        {"role": "user", "content": [{"type": "text", "text": "b"}, {"type": "image"}]},
    ]
    assert plain_text(chat) == "b"
