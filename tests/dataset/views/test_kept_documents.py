"""Views against their definition, token by token: what they list, and why not."""

import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest
from hypothesis import example, given, settings, strategies as st

import jaxdata
from jaxdata.base.errors import DatasetError, InputError
from jaxdata.dataset.index import checksum
from jaxdata.dataset.manifest import Amount
from jaxdata.dataset.views import kept_documents as views, source_view
from jaxdata.dataset.views.kept_documents import CONTENT, Fate, ViewIndex
from jaxdata.dataset.views.source_view import SourceView, TokenRanges
from jaxdata.testing import assert_exactly_once, distinct_documents, write_dataset
from tests.dataset.views.made import Plan, Range, defined, dropping, kept, masking, plans, write

LENGTHS = [5, 1, 9, 4, 12, 2, 40, 7, 3, 12]
DOCUMENTS = distinct_documents(LENGTHS)
MASKS = [np.random.default_rng(n).integers(0, 2, len(d)) for n, d in enumerate(DOCUMENTS)]


@pytest.fixture(scope="module")
def folders() -> Iterator[dict[bool, Path]]:
    """The same documents without loss masks and with them, in several shards and records."""
    with tempfile.TemporaryDirectory() as folder, mock.patch("os.fsync"):  # written anew so often
        found = {masked: Path(folder, str(masked)) for masked in (False, True)}
        for masked, path in found.items():
            masks = {"train/web": MASKS} if masked else None
            shape = {"record_tokens": 16, "shard_documents": 4}
            write_dataset(path, {"train/web": DOCUMENTS}, masks, **shape)
        yield found


PACKING: list[dict[str, Any]] = [
    {"strategy": strategy, "seq_len": seq_len, **small}
    for strategy, seq_len in (("best_fit", 24), ("concat", 10), ("pad", 16))
    for small in ({}, {"chunk_bytes": 64, "block_bytes": 256, "lanes": 8})
]
_apart = [Range(d, at, at + 2, "near") for d in (2, 4, 7) for at in (0, 3)]


@settings(deadline=None, max_examples=60)
@given(plans(LENGTHS), st.booleans(), st.sampled_from(PACKING), st.sampled_from([2, 3, 100]))
@example(Plan(10, {}, masked=_apart, cut=[Range(6, 1, 2, "near")]), False, PACKING[0], 2)
@example(Plan(10, {}, cut=_apart), True, PACKING[2], 2)
def test_a_view_is_what_its_definition_says_and_keeps_the_law(
    folders: dict[bool, Path], plan: Plan, masked: bool, packing: dict[str, Any], at_once: int
) -> None:
    entry = write(folders[masked], plan.view)
    docs, expected = kept(folders[masked]), defined(plan, LENGTHS)
    with mock.patch.object(views, "_AT_ONCE", at_once):
        docs.check_lengths()
    assert docs.document.tolist() == [document for document, _, _ in expected.rows]
    assert docs.lengths.tolist() == [stop - start for _, start, stop in expected.rows]
    for number, (document, start, stop) in enumerate(expected.rows):
        item = docs[number]
        assert item["tokens"].tolist() == DOCUMENTS[document][start:stop].tolist()
        loss = MASKS[document] == 1 if masked else np.ones(LENGTHS[document], bool)
        for each in expected.masked:
            loss[each.start : each.stop] &= each.document != document
        assert item.get("loss_mask", loss[start:stop]).tolist() == loss[start:stop].tolist()
        assert docs.masked or loss[start:stop].all()
    assert {n: fate for n in range(10) if (fate := docs.view.fate(n))} == expected.fates
    for kind, ranges in (("mask", expected.masked), ("cut", expected.cut)):
        found = [Range(n, *span) for n in range(10) for span in docs.view.ranges_of(n, kind)]  # type: ignore[arg-type]
        assert found == ranges
    check_account(entry.account, expected)
    again = write(folders[masked], source_view.content_of(docs), "again")
    assert (again.fingerprint, again.checksums) == (docs.fingerprint, entry.checksums)
    if expected.rows:
        rows = jaxdata.pack(docs, **packing)
        trained = assert_exactly_once((rows[n] for n in range(len(rows))), [docs])
        assert entry.account.loss_tokens == (None if docs.masked else trained)
        origins = rows.table.origins(rows.table.segments(np.arange(len(rows))))
        for row, document, start in zip(origins.row, origins.document, origins.start, strict=True):
            assert DOCUMENTS[document][start] in rows[int(row)]["inputs"]


def check_account(account: Any, expected: Any) -> None:
    """The sums of a view, of each reason."""
    tokens = [stop - start for _, start, stop in expected.rows]
    assert account.source == Amount(documents=10, tokens=sum(LENGTHS))
    assert account.listed == Amount(documents=len(tokens), tokens=sum(tokens))
    left = sum(LENGTHS[n] for n in range(10) if n not in expected.fates)
    left -= sum(each.stop - each.start for each in expected.cut)
    assert account.kept == Amount(documents=10 - len(expected.fates), tokens=left)
    dropped = [(fate.reason, LENGTHS[n]) for n, fate in expected.fates.items()]
    assert account.dropped == amounts(dropped, "documents")
    for found, ranges in ((account.masked, expected.masked), (account.cut, expected.cut)):
        sizes = [(each.reason, each.stop - each.start) for each in ranges]
        assert found == amounts(sizes, "ranges")


def amounts(rows: list[tuple[str, int]], of: str) -> dict[str, Amount]:
    """How many, and their tokens, by reason."""
    by_reason = {why: [size for other, size in rows if other == why] for why, _ in rows}
    return {why: Amount(**{of: len(sizes)}, tokens=sum(sizes)) for why, sizes in by_reason.items()}


def plain(view: SourceView) -> dict[str, Any]:
    """The fields of a view as lists."""
    return {
        name: [each.tolist() for each in value]
        if isinstance(value, TokenRanges)
        else np.asarray(value).tolist()
        for name, value in vars(view).items()
    }


@settings(max_examples=50)
@given(plans(LENGTHS), plans(LENGTHS))
def test_a_stack_and_both_sides_of_pairs_drop_what_either_does(lower: Plan, upper: Plan) -> None:
    """Copies multiply in a stack; of pairs the fewest stay, and each side masks its own tokens."""

    def together(one: Plan, other: Plan, copies: Any, masked: list[Range]) -> Plan:
        given = [plan.copies for plan in (one, other) if plan.copies]
        return Plan(
            10,
            {**other.dropped, **one.dropped},
            [*map(int, copies(given, axis=0))] if given else None,
            masked,
            [*one.cut, *other.cut],
            list(dict.fromkeys([*one.reasons, *other.reasons])),
            list(dict.fromkeys([*one.survivors, *other.survivors])),
        )

    both = together(lower, upper, np.prod, [*lower.masked, *upper.masked])
    assert plain(source_view.stacked(lower.view, upper.view)) == plain(both.view)
    for own, other in ((lower, upper), (upper, lower)):
        side = together(own, other, np.min, [*own.masked])
        assert plain(source_view.of_both_sides(own.view, other.view)) == plain(side.view)


def test_what_is_no_view_is_refused() -> None:
    sound: dict[str, Any] = {"documents": 5, "dropped": np.array([2]), "reasons": ["a"]}
    sound |= {"survivors": ["s"]}
    names = [*map(str, range(257))]
    edge = masking((0, 0, 1))._replace(reason=np.array([0]))
    SourceView(**sound | {"dropped": np.array([0, 4]), "masked": edge, "cut": edge})
    SourceView(**sound | {"copies": np.array([1, 1, 0, 1, 1]), "reasons": names})
    wrong: list[dict[str, Any]] = [
        *({"dropped": np.array(each)} for each in ([2, 2], [-1], [5])),
        {"reason": np.zeros(2, np.uint8)},
        {"reason": np.array([1], np.uint8)},
        {"reasons": names, "reason": np.array([256])},
        {"reasons": ["a", "a"], "reason": np.array([1])},
        {"survivor": np.zeros(2, int)},
        {"survivor_source": np.array([1]), "survivor": np.array([0])},
        {"masked": masking((0, 1, 3))},
        {"masked": edge._replace(stop=np.array([0]))},
        {"cut": edge._replace(start=np.array([-1]))},
        {"copies": np.ones(4, int)},
        {"copies": np.array([1, 1, 1, 0, 1])},
    ]
    for each in wrong:
        with pytest.raises(InputError, match="this is no view: expected documents of the source"):
            SourceView(**sound | each)


def kept_of(folder: Path, plan: Plan) -> Any:
    write(folder, plan.view)
    return kept(folder)


FATES = {0: Fate("near", ("b.jsonl", 7)), 2: Fate("benchmark", None)}
MASKED = [Range(4, 1, 2, "benchmark")]


def test_views_are_told_in_lines(folders: dict[bool, Path]) -> None:
    times = [1] * 6 + [2_000] + [1] * 3
    docs = kept_of(folders[False], Plan(10, FATES, times, MASKED, [Range(4, 3, 6, "near")]))
    told = {n: source_view.described_fate(docs, n)["view"] for n in range(7)}
    assert [told[n]["copies"] for n in (0, 1, 4, 6)] == [0, 1, 1, 2_000]
    assert (told[4]["pieces"], told[6]["name"]) == (2, "d1")
    assert source_view.described_fate(docs.base, 0) == {}
    assert [views.in_source(docs, *which)[1:] for which in ((3,), (3, 2))] == [(4, 6), (4, 8)]
    assert [[*source_view.fate_lines(told[n])] for n in (0, 1, 2, 4, 6)] == [
        ["not trained with view d1: near; b.jsonl:7 survives"],
        [],
        ["not trained with view d1: benchmark"],
        [
            "view d1 masks tokens 1 to 1: benchmark",
            "view d1 cuts out tokens 3 to 5: near",
            "view d1 makes 2 documents of what is left",
        ],
        ["view d1 lists it 2,000 times"],
    ]
    assert [*source_view.account_lines(docs.view.entry.account)] == [
        "kept 8 of 10 documents, 78 of 95 tokens (82.11 %)",
        "listed as 2,008 documents with 80,038 tokens an epoch",
        "dropped 1 documents, 9 tokens: benchmark",
        "dropped 1 documents, 5 tokens: near",
        "masked 1 tokens in 1 ranges: benchmark",
        "cut out 3 tokens in 1 ranges: near",
    ]


def changed(folder: Path, name: str, values: list[int], *, sealed: bool) -> ViewIndex:
    """A view of which a column is another one, with a checksum of its own if it is sealed."""
    view = kept_of(folder, Plan(10, FATES, None, MASKED, [Range(6, 9, 20, "near")])).view
    for each in view.columns:
        view.column(each)
    column = np.array(values, view.columns[name][0])
    sums = view.entry.checksums | ({name: checksum(column)} if sealed else {})
    found: ViewIndex = replace(view, entry=view.entry.model_copy(update={"checksums": sums}))
    found._read.update(view._read | {name: column})
    return found


LISTED = [1, 3, 4, 5, 6, 6, 7, 8, 9]
OWN = [1, 4, 12, 2, 9, 20, 7, 3, 12]


CHANGES: list[Any] = [
    *((name, None, f"its column {name} is not what was written") for name in (*CONTENT, "start")),
    ("document", [3, 1, *LISTED[2:]], "its documents are not in ascending order"),
    ("document", [1, 4, 3, *LISTED[3:]], "its documents are not in ascending order"),
    ("document", [*LISTED[:-1], 10], "its lengths are not those of its documents"),
    ("length", [*OWN[:-1], 11], "its lengths do not add up to its tokens"),
    ("start", [0] * 5 + [21, 0, 0, 0], "its lengths are not those of its documents"),
]  # fmt: skip


@pytest.mark.parametrize(("column", "values", "what"), CHANGES)
def test_a_list_that_is_not_what_was_written_or_not_of_its_source_is_damage(
    folders: dict[bool, Path], column: str, values: list[int] | None, what: str
) -> None:
    found = changed(folders[False], column, values or [3], sealed=values is not None)
    for at_once in (2, 100):
        with mock.patch.object(views, "_AT_ONCE", at_once), pytest.raises(DatasetError, match=what):
            found.check(np.array([*LENGTHS, 12], np.uint32))


def test_columns_that_say_why_are_checked_when_they_are_used(folders: dict[bool, Path]) -> None:
    nameless = "its columns name no reason, or no source"
    for column, values, what in (
        ("reason", [2, 1], nameless),
        ("survivor_source", [2, -1], nameless),
        ("mask_reason", [2], nameless),
        ("document", [*LISTED[:-1], 10], "it lists documents that the source does not have"),
    ):
        found = changed(folders[False], column, values, sealed=False)
        with pytest.raises(DatasetError, match=f"view 'd1' of train/web is damaged: {what}; jaxda"):
            found.fate(0), found.ranges_of(4), found.placed(*np.array([[8], [0]]))
    assert {name: size for name, (_, size) in found.columns.items()} == {
        **dict.fromkeys(("document", "length", "start"), 9),
        **dict.fromkeys(("dropped", "reason", "survivor_source", "survivor"), 2),
        **{f"{kind}_{of}": 1 for kind in ("mask", "cut")
           for of in ("document", "start", "stop", "reason")},
    }  # fmt: skip


def test_numbers_of_documents_have_32_bits_where_these_suffice() -> None:
    found = [views.number_type(count) for count in (0, 2**32 - 1, 2**32)]
    assert found == [np.uint32, np.uint32, np.uint64]


def test_the_fingerprint_is_of_what_is_read_alone(folders: dict[bool, Path]) -> None:
    one = write(folders[False], dropping(10, 3), "a").fingerprint
    other = dropping(10, 3, reason=np.array([1], np.uint8))
    assert write(folders[False], other, "b").fingerprint == one
    changes: list[dict[str, Any]] = [{"masked": masking((5, 0, 1))}, {"cut": masking((4, 0, 3))}]
    changed = [dropping(10, 4), dropping(10), *(dropping(10, 3, **each) for each in changes)]
    different = {write(folders[False], view, "a").fingerprint for view in changed}
    assert len(different | {one, kept(folders[False], "b").base.fingerprint}) == 6


def test_plans_of_views_with_the_same_lengths_are_their_own(tmp_path: Path) -> None:
    """Documents of one length: what is kept of one view must not be taken for another's."""
    write_dataset(tmp_path, {"train/web": distinct_documents([16] * 64)})
    order = {"seq_len": 32, "chunk_bytes": 128, "block_bytes": 256, "lanes": 4}
    write(tmp_path, dropping(64, *range(0, 32)), "late")
    write(tmp_path, dropping(64, *range(0, 64, 2)), "odd")
    late, odd = (jaxdata.pack(kept(tmp_path, name), **order) for name in ("late", "odd"))
    assert late.plan != odd.plan  # though the lengths are the same
