"""The trial of an encoder, what it is kept by, and who is used after it."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from jaxdata import tokenizers
from jaxdata.errors import InputError
from jaxdata.installing import install_command
from jaxdata.tokenizers.encoders import Encoder, attach, choice, choose, verdicts
from tests.tokenizers.made import double, settings, tokenizer


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
@pytest.mark.parametrize(
    ("wrong", "reason"),
    [
        (lambda text: "'s" in text and "a" in text, r"does \d+ characters otherwise"),
        (lambda text: "x" * 3 in text or text == " " * 3_000, r"gives other ids for '   "),
    ],
)
def test_an_encoder_that_errs_in_its_trial_is_refused(
    monkeypatch: pytest.MonkeyPatch, wrong: Callable[[str], bool], reason: str
) -> None:
    use(monkeypatch, double(wrong))
    made = tokenizer(settings())
    with pytest.raises(InputError, match=f"--encoder fast cannot encode for .*{reason}"):
        choose(made, "fast", text_bytes=0)
    found = choose(made, "auto", text_bytes=2**40)
    assert found.name == "library"
    assert "otherwise" in found.reasons[0] or "other ids" in found.reasons[0]


@pytest.mark.usefixtures("few")
def test_a_trial_is_made_once_and_waited_for_where_it_is_worth_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    use(monkeypatch, double(lambda _: False))
    made, calls = tokenizer(settings()), []
    inner = choice.try_encoder
    monkeypatch.setattr(choice, "try_encoder", lambda *a: calls.append(a) or inner(*a))
    some, many = 3 * 2**20, 64 * 2**20
    few_bytes = choose(made, "auto", text_bytes=some)
    assert (few_bytes.name, few_bytes.version, calls) == ("library", "", [])
    assert not few_bytes.reasons, "of what is not worth a trial nothing is said"
    done: list[tuple[int, int]] = []
    assert choose(made, "auto", text_bytes=many, progress=lambda *a: done.append(a)).name == "fast"
    assert done[-1][0] == done[-1][1] > 100
    assert choose(made, "auto", text_bytes=some).version == "double 1.0", "the trial was kept"
    assert choose(made, "auto", text_bytes=some // 3).name == "library", "nothing to gain"
    assert len(calls) == 1
    caught = frozenset({"double 1.0"})
    assert choose(made, "auto", text_bytes=many, without=caught).name == "library"
    monkeypatch.setattr(verdicts, "library_of", lambda kind: "tokenizers 9.9")
    assert choose(made, "auto", text_bytes=some).name == "library", "it needs another trial"


def test_a_damaged_verdict_is_made_again(monkeypatch: pytest.MonkeyPatch) -> None:
    made = tokenizer(settings())
    verdicts.keep_verdict(made, "double 1.0", verdicts.Verdict(ratio=2.0))
    assert verdicts.kept_verdict(made, "double 1.0") == verdicts.Verdict(ratio=2.0)
    (file,) = Path(os.environ["JAXDATA_CACHE"]).rglob("*.json")
    file.write_text("{")
    assert verdicts.kept_verdict(made, "double 1.0") is None


def test_what_is_not_installed_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    made = tokenizer(settings())
    for name, extra in (("tiktoken", "tiktoken"), ("fastokens", "fast")):
        monkeypatch.setitem(sys.modules, name, None)
        with pytest.raises(InputError, match=re.escape(install_command(extra))):
            choose(made, "tiktoken" if name == "tiktoken" else "fast", text_bytes=0)
    assert choose(made, "verify", text_bytes=0).name == "library"
    with pytest.raises(InputError, match="encoder='quick'; expected one of"):
        choose(made, "quick", text_bytes=0)  # type: ignore[arg-type]
    with pytest.raises(InputError, match="it is not for bytes tokenizers"):
        choose(tokenizers.load("bytes"), "tiktoken", text_bytes=0)


def test_a_worker_with_another_version_takes_the_library(monkeypatch: pytest.MonkeyPatch) -> None:
    use(monkeypatch, double(lambda _: False))
    made = tokenizer(settings())
    attach(made, choice.Choice("fast", "double 0.9"))
    assert made.guard is None
    attach(made, choice.Choice("fast", "double 1.0"))
    assert made.guard is not None
