"""`jaxdata.select`: documents by expressions over fields, weights, scores of files; the command."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

import jaxdata
from jaxdata.base.errors import InputError
from jaxdata.base.seeds import derive
from jaxdata.dataset.views import selecting
from jaxdata.dataset.views.selecting import Expression
from tests.commands import run as command
from tests.dataset.views.made import convert_records, kept

RECORDS: list[dict[str, Any]] = [
    {
        "id": f"k{n}",
        "lang": ["en", "de", None][n % 3],
        "score": [0.25, 1, None, 0.75][n % 4],
        "meta": {"url": f"https://{'news' if n % 2 else 'blog'}.example/{n}", "p": {"q": n}},
        "x-y": n % 5,
        "odd": n if n < 40 else "text",
        "url": f"u{n % 5}",
    }
    for n in range(48)
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    keep = [*RECORDS[0]]
    with mock.patch("os.fsync"):
        yield convert_records(tmp_path_factory.mktemp("select"), RECORDS, keep=keep)


def chosen(folder: Path, where: str, **given: Any) -> list[int]:
    jaxdata.select(folder, "t", where=where, **given)
    return kept(folder, "t").document.tolist()


def chance(document: int, seed: int, source: str) -> float:
    """splitmix64 of the document, with numbers of any size."""
    mixed = (document + 1) * 0x9E3779B97F4A7C15 + derive(seed, "weight", source)
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB), (31, 1)):
        mixed %= 2**64
        mixed = (mixed ^ (mixed >> shift)) * factor
    return (mixed % 2**64 >> 11) / 2**53


@settings(max_examples=30)
@given(
    st.sampled_from([None, 0.25, 0.8]), st.sampled_from([None, 0.5, 2.3]), st.integers(0, 3),
    st.booleans(), st.sampled_from([2, 5, 100]),
)  # fmt: skip
def test_a_selection_is_made_document_by_document(
    folder: Path, least: float | None, weight: float | None, seed: int, stacks: bool, at_once: int
) -> None:
    """A document that a lower view dropped needs no weight."""
    where = None if least is None else f"score > {least}"
    weighing = None if weight is None else f"score * {weight}"
    if where is None and (weighing is None or not stacks):
        where = "score is not None" if weighing else "document != 3"
    lower = {"documents": "known"} if stacks else {}
    jaxdata.select(folder, "known", where="score is not None")
    fates, copies = dict[int, str](), []
    for n, record in enumerate(RECORDS):
        score = record["score"]
        holds = {None: True, "score is not None": score is not None, "document != 3": n != 3}.get(
            where, None if score is None else score > (least or 0)
        )
        if stacks and score is None:
            fates[n] = "where"
        elif not holds:
            fates[n] = "where is unknown" if holds is None else "where"
        else:
            times = 1
            if weight is not None:
                drawn = chance(n, seed, "train/web")
                times = int(score * weight) + (drawn < score * weight - int(score * weight))
            copies += [n] * times
            fates |= {} if times else {n: "weight"}
    progress = mock.Mock()
    with mock.patch.object(selecting, "_AT_ONCE", at_once):
        asked: dict[str, Any] = {"where": where, "weight": weighing, "seed": seed}
        jaxdata.select(folder, "t", progress=progress, **asked, **lower)
    found = kept(folder, "t")
    assert found.document.tolist() == copies
    assert {n: fate.reason for n in range(48) if (fate := found.view.fate(n))} == fates
    edges = [*range(at_once, 48, at_once), 48]
    assert progress.mock_calls == [mock.call(edge, 48) for edge in edges]


def test_an_expression_chooses_by_kept_and_built_in_fields(folder: Path) -> None:
    where = "(lang == 'en' or 'news' in meta.url) and document > 5 and file.endswith('.jsonl')"
    assert chosen(folder, where) == [n for n in range(6, 48) if n % 3 == 0 or n % 2]
    assert chosen(folder, "meta.p.q < 3 or meta.p.none > 1") == [0, 1, 2]
    assert chosen(folder, "field('x-y') == 4 and source == 'web'") == [*range(4, 48, 5)]
    lengths = jaxdata.open_dataset(folder)["web"].lengths
    assert chosen(folder, "tokens > 12") == np.flatnonzero(lengths > 12).tolist()
    with (
        mock.patch.object(selecting, "_AT_ONCE", 40),
        pytest.raises(InputError, match=r"field 'odd' of train/web .* in documents 0 to 47|to 39"),
    ):
        chosen(folder, "odd > 1 or odd.x > 2")


def test_documents_are_found_by_an_expression_or_by_their_urls(folder: Path) -> None:
    """One of which it is unknown is not."""
    docs: Any = jaxdata.open_dataset(folder)["web"]
    with mock.patch.object(selecting, "_AT_ONCE", 5):
        found = selecting.documents_where(docs, Expression("score > 0.8", "--where"))
        assert found.tolist() == [*range(1, 48, 4)]
        found = selecting.documents_with(docs, {"u1", "u7", "u4"})
        assert found.tolist() == [n for n in range(48) if n % 5 in (1, 4)]


IMPOSSIBLE: list[Any] = [
    ({"where": "lagn == 'en'"}, r"--where names the field 'lagn', which train/web does not "
     r"have: it has id, lang, .*, url, tokens, document, source, file; did"),
    ({"weight": "zzz"}, "--weight names the field 'zzz'"),
    ({"where": "meta.url.x == 1"}, "field 'meta.url.x' of train/web has values of different"),
    ({"where": "tokens"}, "--where 'tokens' is of type int64: expected true or false, such as"),
    ({"weight": "tokens > 1"}, "--weight 'tokens > 1' is of type bool: expected a number"),
    ({"weight": "score"}, "--weight 'score' is unknown for document 2 of train/web: expected "
     "0 to 10,000; --where can leave out documents without a weight"),
    ({"weight": "1 - document"}, "'1 - document' is -1 for document 2 of train/web"),
    ({"weight": "document * 5000.1"}, "'document . 5000.1' is 10000.2 for document 2 of tr"),
    ({}, "give where or weight: what to keep, or how often"),
    ({"where": "tokens > 1", "name": "../up"}, "a view cannot be named '../up': expected"),
    ({"where": "tokens > 1", "name": "x" * 101}, "a view cannot be named"),
]  # fmt: skip


@pytest.mark.parametrize(("given", "said"), IMPOSSIBLE)
def test_impossible_choices_are_named(folder: Path, given: dict[str, Any], said: str) -> None:
    with pytest.raises(InputError, match=said):
        jaxdata.select(folder, **{"name": "t"} | given)


def test_more_fields_are_given_for_each_document_of_one_source(folder: Path) -> None:
    values = np.linspace(0, 1, len(RECORDS))
    expected = np.flatnonzero(values > 0.8).tolist()
    assert chosen(folder, "score > 0.8", fields={"score": values}) == expected, "before kept ones"
    made = jaxdata.select(folder, "t", where="q > 0.8", weight="q", seed=4, fields={"q": values})
    assert {*kept(folder, "t").document.tolist()} <= {*expected}
    facts = made["train/web"].parameters
    assert (facts["seed"], len(facts["fields"]["q"])) == (4, 64)
    for wrong in (values[:3], np.zeros((48, 2)), ["a"] * 48):
        with pytest.raises(InputError, match=r"fields: 'q' is of .*has 48 documents: expected"):
            jaxdata.select(folder, "t", where="q > 1", fields={"q": wrong})


def test_the_command_makes_shows_and_removes_a_view(folder: Path) -> None:
    make = ("dedup", folder, "--output-name", "good", "--sources", "web", "--where")
    said = command(*make, "lang == 'en'").stdout
    assert "kept 16 of 48 documents" in said
    assert "documents: good in a config" in said
    assert "view good: command select, where lang == 'en'" in command("inspect", folder).stdout
    assert "did you mean 'lang'?" in command(*make, "lagn == 'en'", status=1).stderr
    remove = ("dedup", folder, "--remove", "good", "--sources", "web")
    assert "view good of train/web is removed" in command(*remove).stdout
    assert "has no view 'good'" in command(*remove, status=1).stderr
    told = command(*make, "t", "--threshold", ".5", status=2)
    assert "--where chooses documents by fields, and takes no --threshold" in told.stderr
