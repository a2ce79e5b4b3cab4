"""The trial of an encoder, what it is kept by, and who is used after it."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from jaxdata import tokenizers
from jaxdata.base.errors import InputError, install_command
from jaxdata.tokenizers import CannotEncode
from jaxdata.tokenizers.encoders import (
    EncodedDataset,
    Encoder,
    attach,
    choice,
    choose,
    encoded_by,
    note_encoded,
    trial,
)
from jaxdata.tokenizers.encoders import guarded as verdicts
from jaxdata.tokenizers.encoders.base import CodePointSet
from jaxdata.tokenizers.encoders.guarded import Verdict
from tests.tokenizers.made import Double, double, settings, tokenizer


def use(monkeypatch: pytest.MonkeyPatch, *kinds: type[Encoder]) -> None:
    monkeypatch.setattr(choice, "ENCODERS", list(kinds))


@pytest.mark.usefixtures("few")
def test_a_character_that_an_encoder_does_otherwise_is_left_to_the_library(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    use(monkeypatch, double(lambda text: "\u00e9" in text))
    made = tokenizer(settings())
    found = choose(made, "fast", text_bytes=0)
    assert (0xE9, 0xE9) in found.left
    attach(made, found)
    some = ["caf\u00e9", "plain", "f\u00fcr"]
    for one, other in zip(made.encode(some), made.encode_texts(some, False), strict=True):
        assert one.tolist() == other.tolist()
    assert made.guard
    assert made.guard.counts["left texts"] == 1
    assert made.guard.counts["own texts"] == 2
    assert made.guard.counts["all texts"] == 3


@pytest.mark.usefixtures("few")
def test_a_trial_is_made_once_and_waited_for_where_it_is_worth_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    use(monkeypatch, double(lambda _: False))
    made, calls = tokenizer(settings()), []
    inner = choice.try_encoder
    monkeypatch.setattr(choice, "try_encoder", lambda *a: calls.append(a) or inner(*a))
    many = 64 * 2**20
    few_bytes = choose(made, "auto", text_bytes=many - 1)
    assert (few_bytes.name, few_bytes.version, calls) == ("library", "", [])
    assert not few_bytes.reasons, "of what is not worth a trial nothing is said"
    done: list[tuple[int, int]] = []
    assert choose(made, "auto", text_bytes=many, progress=lambda *a: done.append(a)).name == "fast"
    assert done[-1][0] == done[-1][1] > 100
    assert choose(made, "auto", text_bytes=many).version == "double 1.0", "the trial was kept"
    assert len(calls) == 1
    caught = frozenset({"double 1.0"})
    assert choose(made, "auto", text_bytes=many, without=caught).name == "library"
    monkeypatch.setattr(verdicts, "library_of", lambda kind: "tokenizers 9.9")
    choose(made, "auto", text_bytes=many)
    assert len(calls) == 2, "it needs another trial"


def test_a_damaged_verdict_is_made_again(monkeypatch: pytest.MonkeyPatch) -> None:
    made = tokenizer(settings())
    verdicts.keep_verdict(made, "double 1.0", verdicts.Verdict(left=[(3, 4)]))
    assert verdicts.kept_verdict(made, "double 1.0") == verdicts.Verdict(left=[(3, 4)])
    (file,) = Path(os.environ["JAXDATA_CACHE"]).rglob("*.json")
    file.write_text("{")
    assert verdicts.kept_verdict(made, "double 1.0") is None


def test_what_is_not_installed_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    made = tokenizer(settings())
    monkeypatch.setitem(sys.modules, "fastokens", None)
    with pytest.raises(InputError, match=re.escape(install_command("fast"))):
        choose(made, "fast", text_bytes=0)
    assert choose(made, "verify", text_bytes=0).name == "library"
    with pytest.raises(InputError, match="encoder='quick'; expected one of"):
        choose(made, "quick", text_bytes=0)  # type: ignore[arg-type]
    with pytest.raises(InputError, match="it is not for bytes tokenizers"):
        choose(tokenizers.load("bytes"), "fast", text_bytes=0)


def test_a_worker_with_another_version_takes_the_library(monkeypatch: pytest.MonkeyPatch) -> None:
    use(monkeypatch, double(lambda _: False))
    made = tokenizer(settings())
    attach(made, choice.Choice("fast", "double 0.9"))
    assert made.guard is None
    attach(made, choice.Choice("fast", "double 1.0"))
    assert made.guard is not None


def test_a_trial_says_what_differs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trial, "every_character", lambda: "ab\u00e9\u1f79\u4e00\u0378")
    monkeypatch.setattr(trial, "naughty_texts", lambda words: ["x" * 70, "\u1f79!", *words])
    made, done = tokenizer(settings()), list[tuple[int, int]]()

    def tried(wrong: Callable[[str], bool], kind: Any = double) -> Verdict:
        return trial.try_encoder(kind(wrong), made, lambda *count: done.append(count))

    found = tried(lambda text: "\u1f79" in text)
    assert found.refused is None
    left = CodePointSet(found.left)
    given = (0x3BF, 0x1F79, 0x378, 0xF0000, 0x10FFFF)
    assert [code in left for code in given] == [True] * 5, "and what it is composed of"
    assert [code in left for code in (0x61, 0xE9, 0x301, 0x4E00)] == [False] * 4
    assert done[0] == done[-1] == (5, 5), "characters that tables lack are not tried"
    assert tried(lambda text: text == "\u1f79!").refused == "it gives other ids for '\\u1f79!'"
    assert tried(lambda text: text == "x" * 70).refused == f"it gives other ids for '{'x' * 64}'..."
    assert tried(lambda text: text == "<tool>").refused == "it gives other ids for '<tool>'"
    said = tried(lambda _: True).refused
    assert said == "it does 6 characters otherwise, as 'ab\\xe9\\u03bf'"
    monkeypatch.setattr(trial, "_MOST", 1)
    two = tried(lambda text: "\u1f79" in text).refused
    assert two == "it does 2 characters otherwise, as '\\u03bf\\u1f79'"
    assert 0x4E00 in CodePointSet(tried(lambda text: "\u4e00" in text).left)
    assert 0x1F79 not in CodePointSet(tried(lambda text: "\u1f79" in text, failing).left)


def failing(fails: Callable[[str], bool]) -> Any:
    """Fails on texts instead of giving other ids: the library encodes them then."""

    class Failing(Double):
        def encode(self, texts: Sequence[str]) -> list[np.ndarray]:
            if any(map(fails, texts)):
                raise CannotEncode("no")
            return super().encode(texts)

    return Failing


@pytest.mark.usefixtures("few")
def test_an_encoder_that_errs_in_its_trial_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    use(monkeypatch, double(lambda text: text == " " * 3_000))
    made, says = tokenizer(settings()), "gives other ids for '   "
    with pytest.raises(InputError, match=f"--encoder fast cannot encode for .*{says}"):
        choose(made, "fast", text_bytes=0)
    found = choose(made, "auto", text_bytes=2**40)
    assert found.name == "library"
    assert says in found.reasons[0]


def test_what_an_encoder_encoded_is_remembered_once() -> None:
    made = tokenizer(settings())
    one, other = (
        EncodedDataset(dataset=name, made={"train/web": "f"}, command="c", folder="/")
        for name in ("a", "b")
    )
    for each in (one, other, one):
        note_encoded(made, "double 1.0", each)
    assert sorted(encoded_by(made, "double 1.0"), key=lambda each: each.dataset) == [one, other]
    assert [*encoded_by(made, "double 2.0")] == []
