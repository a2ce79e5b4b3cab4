"""Fill in the middle: layouts, rates, and that nothing but content and seed decides."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxdata import tokenizers
from jaxdata.converter.tasks import make_settings, make_task
from jaxdata.converter.tasks.fim import FimSettings, Sentinels, lay_out, middle_of
from jaxdata.errors import InputError
from jaxdata.tokenizers import Tokenizer
from tests.tokenizers.test_tokenizers import open_one

BYTES = tokenizers.load("bytes")
PRE, MID, SUF, EOD = 1, 2, 3, 256
IDS = {"fim_prefix": PRE, "fim_middle": MID, "fim_suffix": SUF}


def encode(text: str, tokenizer: Tokenizer = BYTES, **options: Any) -> list[int]:
    task = make_task(make_settings("fim", tokenizer, IDS | options), tokenizer)
    ((encoded,),) = task.encode(task.prepare({"text": text}).documents)
    assert encoded.mask is None
    return encoded.tokens.tolist()


def parts(tokens: list[int]) -> tuple[str, str, str, str]:
    """Which layout it is, and prefix, middle, suffix (SPM: prefix and middle as one)."""
    assert tokens.pop() == EOD
    if tokens[:1] != [PRE]:
        return "AR", bytes(tokens).decode(), "", ""
    if tokens[1] == SUF:
        assert tokens.count(MID) == 1
        mid = tokens.index(MID)
        return "SPM", bytes(tokens[mid + 1 :]).decode(), "", bytes(tokens[2:mid]).decode()
    suf, mid = tokens.index(SUF), tokens.index(MID)
    pieces = tokens[1:suf], tokens[mid + 1 :], tokens[suf + 1 : mid]
    return "PSM", *(bytes(piece).decode() for piece in pieces)


TEXT = st.text(alphabet=st.characters(blacklist_characters="\x01\x02\x03", codec="utf-8"))


@given(TEXT, st.integers(0, 99))
def test_nothing_is_lost_whatever_the_layout(text: str, seed: int) -> None:
    kind, prefix, middle, suffix = parts(encode(text, seed=seed))
    assert prefix + middle + suffix == text
    settings = FimSettings(seed=seed)
    chosen = middle_of(text, settings)
    assert (chosen is None) == (kind == "AR")
    if chosen and kind == "PSM":
        spm, start, stop = chosen
        assert not spm
        assert (prefix, middle) == (text[:start], text[start:stop])


def test_the_layouts() -> None:
    sentinels = Sentinels(PRE, MID, SUF)
    contents = [piece.content for piece in lay_out(("p", "m", "s"), False, sentinels)]
    assert contents == [PRE, "p", SUF, "s", MID, "m"]
    contents = [piece.content for piece in lay_out(("p", "m", "s"), True, sentinels)]
    assert contents == [PRE, SUF, "s", MID, "p", "m"]
    assert encode("abc", fim_rate=0) == [*b"abc", EOD], "left as it is, and EOD at the end"
    assert encode("", fim_rate=1, spm_rate=0) == [PRE, SUF, MID, EOD]
    assert encode("", fim_rate=1, spm_rate=1) == [PRE, SUF, MID, EOD]


def test_golden_draws() -> None:
    texts = ["", "a", "def f():\n    return 1\n", "größe 大きさ"]
    assert [middle_of(text, FimSettings(fim_rate=1)) for text in texts] == GOLDEN


GOLDEN = [(False, 0, 0), (False, 0, 1), (True, 1, 15), (True, 2, 3)]


def test_rates_are_kept_and_edges_are_anywhere() -> None:
    texts = [f"{n} " * 10 for n in range(4_000)]
    drawn = [middle_of(text, FimSettings(fim_rate=0.7, spm_rate=0.2)) for text in texts]
    chosen = [one for one in drawn if one]
    assert abs(len(chosen) / len(texts) - 0.7) < 0.03
    assert abs(sum(spm for spm, _, _ in chosen) / len(chosen) - 0.2) < 0.03
    shares = [
        edge / len(text) for text, one in zip(texts, drawn, strict=True) if one for edge in one[1:]
    ]
    for tenth in range(10):
        inside = sum(tenth / 10 <= share < (tenth + 1) / 10 for share in shares)
        assert abs(inside / len(shares) - 0.1) < 0.02


def test_only_content_and_seed_decide() -> None:
    texts = [f"text number {n}" for n in range(50)]
    task = make_task(make_settings("fim", BYTES, IDS), BYTES)
    together = [one[0].tokens.tolist() for one in task.encode(texts)]
    assert together == [encode(text) for text in texts]
    assert together != [encode(text, seed=1) for text in texts]
    again = [encode(text) for text in reversed(texts)]
    assert again == together[::-1]


def test_sentencepiece_parts_add_no_space(shared_data: Path) -> None:
    mistral = open_one(shared_data, "mistral")
    pieces = {"fim_prefix": "<s>", "fim_middle": "</s>", "fim_suffix": "<unk>"}
    for seed in range(20):
        for spm_rate in (0, 1):
            given = pieces | {"fim_rate": 1, "spm_rate": spm_rate, "seed": seed}
            tokens = encode("def f(x):\n    return x + 1", mistral, **given)[:-1]
            mid, suf = tokens.index(2), tokens.index(0)
            if spm_rate:
                text = mistral.decode([*tokens[mid + 1 :], *tokens[suf + 1 : mid]])
            else:
                text = mistral.decode([*tokens[1:suf], *tokens[mid + 1 :], *tokens[suf + 1 : mid]])
            assert text == "def f(x):\n    return x + 1"


def test_the_tokens_are_the_tokenizers_own_or_named(shared_data: Path) -> None:
    cl100k = open_one(shared_data, "cl100k")
    own = dict.fromkeys(IDS)
    tokens = encode("some text", cl100k, fim_rate=1, spm_rate=0, **own)
    assert (tokens[0], 100259 in tokens, 100260 in tokens) == (100258, True, True)
    with pytest.raises(InputError, match=r"needs three different tokens .* --fim-prefix"):
        encode("x", open_one(shared_data, "gpt2"), **own)
    with pytest.raises(InputError, match="fim-middle='<mid>' is not a token of"):
        encode("x", cl100k, fim_prefix=1, fim_middle="<mid>", fim_suffix=3)
    with pytest.raises(InputError, match=r"three different tokens .*found \[1, 1, 3\]"):
        encode("x", fim_middle=1)
    with pytest.raises(InputError, match=r"task 'fim': fim_rate=1\.5: input should be less than"):
        encode("x", fim_rate=1.5)


def test_real_code_comes_back(shared_data: Path) -> None:
    cl100k = open_one(shared_data, "cl100k")
    with gzip.open(shared_data / "code-0.jsonl.gz") as lines:
        texts = [json.loads(next(lines))["text"] for _ in range(100)]
    own = dict.fromkeys(IDS) | {"fim_context": 0}
    task = make_task(make_settings("fim", cl100k, own), cl100k)
    for text, (encoded,) in zip(texts, task.encode(texts), strict=True):
        tokens = encoded.tokens.tolist()
        pre, mid, suf = (tokens.index(i) if i in tokens else -1 for i in (100258, 100259, 100260))
        if pre < 0:
            assert cl100k.decode(tokens) == text
        elif suf == 1:
            assert cl100k.decode(tokens[mid + 1 :] + tokens[2:mid]) == text
        else:
            assert cl100k.decode(tokens[1:suf] + tokens[mid + 1 :] + tokens[suf + 1 : mid]) == text
