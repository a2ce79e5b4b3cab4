"""Prompts and answers shortened so that a document fits."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxdata import tokenizers
from jaxdata.converter.tasks import Dropped, make_settings, make_task
from jaxdata.errors import InputError

BYTES = tokenizers.load("bytes", bos=7)
EOD, PROMPT, ANSWER = 256, ord("q"), ord("a")


def encode(*turns: tuple[str, str], **options: Any) -> tuple[list[int], list[int]] | str:
    settings = make_settings("sft", BYTES, {"separator": "|", "pairs": "turns", **options})
    task = make_task(settings, BYTES)
    messages = [{"role": role, "content": text} for turn in turns
                for role, text in zip(("user", "assistant"), turn, strict=True)]  # fmt: skip
    (encoded,) = task.encode(task.prepare({"messages": messages}).documents)
    if isinstance(encoded, Dropped):
        return encoded.reason
    return encoded[0].tokens.tolist(), encoded[0].mask.tolist()


def told(*turns: tuple[str, str], **options: Any) -> str:
    made = encode(*turns, **options)
    assert not isinstance(made, str)
    return "".join("." if token == EOD else chr(token) for token in made[0])


def test_the_longest_prompts_are_shortened_first_then_answers_at_their_end() -> None:
    assert told(("12345", "abc"), truncate_to=10) == "12345|abc.", "it fits"
    assert told(("12345", "abc"), truncate_to=8) == "345|abc."
    assert told(("12345", "abc"), truncate_to=8, truncate_prompts="keep_start") == "123|abc."
    assert told(("12345", "abc"), truncate_to=4, least_turn=1) == "5|ab", "EOD goes with the end"
    two = ("123", "abc"), ("123456", "de")
    assert told(*two, truncate_to=15) == "123|abc.456|de."
    assert told(*two, truncate_to=14, least_turn=2) == "123|abc.56|de."
    assert told(*two, truncate_to=13, least_turn=2) == "23|abc.56|de."
    assert told(*two, truncate_to=12, least_turn=2) == "23|abc56|de."


def test_loss_stays_with_the_answers() -> None:
    tokens, mask = encode(("12345", "abc"), truncate_to=8)  # type: ignore[misc]
    assert mask == [0, 0, 0, 0, 1, 1, 1, 1]
    tokens, mask = encode(("12345", "abc"), truncate_to=4)  # type: ignore[misc]
    assert (bytes(tokens), mask) == (b"5|ab", [0, 0, 1, 1])


def test_what_cannot_be_shortened_so_far_is_left_out() -> None:
    assert (
        encode(("12345", "abc"), truncate_to=8, least_turn=5) == "cannot be shortened to 8 tokens"
    )
    assert encode(("12", "ab"), ("34", "cd"), truncate_to=5) == "cannot be shortened to 5 tokens"


TURNS = st.lists(st.tuples(st.integers(1, 30), st.integers(1, 30)), min_size=1, max_size=4)


@given(TURNS, st.integers(2, 60), st.integers(1, 12), st.booleans(), st.booleans())
def test_it_takes_what_is_needed_and_no_more(
    turns: list[tuple[int, int]], limit: int, least: int, start: bool, bos: bool
) -> None:
    texts = [("q" * q, "a" * a) for q, a in turns]
    mode = "keep_start" if start else "keep_end"
    made = encode(*texts, truncate_to=limit, least_turn=least, truncate_prompts=mode, bos=bos)
    total = bos + sum(q + a + 2 for q, a in turns)
    spare = sum(max(0, size - least) for q, a in turns for size in (q, a + 1))
    if total <= limit:
        assert made == encode(*texts, bos=bos)
    elif total - spare > limit:
        assert made == f"cannot be shortened to {limit - bos:,} tokens"
    else:
        tokens, mask = made  # type: ignore[misc]
        assert len(tokens) == limit
        assert tokens.count(ord("|")) == len(turns), "nothing between turns is cut"
        prompts_spare = sum(max(0, q - least) for q, _ in turns)
        kept = tokens.count(ANSWER) + tokens.count(EOD)
        if total - limit <= prompts_spare:
            assert kept == sum(a + 1 for _, a in turns), "answers stay whole while prompts are long"
        assert sum(mask) == kept


def test_a_chat_template_is_refused() -> None:
    says = r"truncate_to cannot be combined with a chat template.*--chat-template none, or leave"
    template = "{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}"
    with pytest.raises(InputError, match=says):
        encode(("a", "b"), truncate_to=9, chat_template=template, separator="")
    with pytest.raises(InputError, match="truncate_to=1: input should be greater than or equal"):
        encode(("a", "b"), truncate_to=1)
