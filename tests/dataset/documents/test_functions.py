"""Documents through functions: filtered and mapped, against lists; what is kept, and refused."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import jaxdata
from jaxdata.base.errors import DatasetError, InputError, StateMismatch
from jaxdata.dataset import functions
from jaxdata.dataset.array_documents import ArrayDocuments
from jaxdata.dataset.documents import Document, Documents
from jaxdata.testing import assert_exactly_once, assert_same_batches
from tests import builders
from tests.dataset.documents.test_contract_of_documents import (
    Content,
    asked_of,
    by_range,
    columns,
    contents,
    ranges,
)


def starts_even(document: Document) -> bool:
    return len(document["tokens"]) > 0 and int(document["tokens"][0]) % 2 == 0


def backwards(document: Document) -> Document:
    return {name: values[::-1] for name, values in document.items()}


def each_twice(document: Document) -> Document:
    return {name: values.repeat(2) for name, values in document.items()}


def without_some(document: Document, rng: np.random.Generator) -> Document:
    left = rng.random(len(document["tokens"])) < 0.7
    return {name: values[left] for name, values in document.items()}


def tokens_alone(document: Document) -> Any:
    return document["tokens"]


Step = Callable[[Documents], Documents]
STEPS: dict[str, Step] = {
    "starts even": lambda docs: docs.filter(starts_even),
    "backwards": lambda docs: docs.map(backwards, same_length=True),
    "each twice": lambda docs: docs.map(each_twice),
    "without some": lambda docs: docs.map(without_some, seed=3),
}


def by_hand(documents: list[Document], step: str) -> list[Document]:
    """The same in plain Python."""
    if step == "starts even":
        return [each for each in documents if starts_even(each)]
    if step == "without some":
        return [
            without_some(each, np.random.default_rng(jaxdata.base.seeds.derive(3, "document", n)))
            for n, each in enumerate(documents)
        ]
    return [{"backwards": backwards, "each twice": each_twice}[step](each) for each in documents]


def plain(documents: list[Document]) -> list[dict[str, list[Any]]]:
    return [{name: values.tolist() for name, values in each.items()} for each in documents]


@given(contents, st.lists(st.sampled_from(sorted(STEPS)), max_size=3), st.data())
def test_any_steps_are_those_of_lists_and_any_ranges_of_what_they_make(
    content: Content, steps: list[str], data: st.DataObject
) -> None:
    docs: Documents = content.in_memory()
    expected = docs[:]
    for step in steps:
        docs, expected = STEPS[step](docs), by_hand(expected, step)
    assert plain(docs[:]) == plain(expected)
    assert docs.lengths.tolist() == [len(each["tokens"]) for each in expected]
    assert (docs.name, len(docs), docs.masked) == ("train/web", len(expected), content.masked)
    docs.check_lengths()
    made = Content([each["tokens"].tolist() for each in expected], content.masked)
    rows = asked_of(data, made)
    for name, of in {"tokens": docs, "w": docs.side["w"]}.items():
        found = by_range(of.tokens(*columns(rows)), len(rows), of.dtype)
        assert found == ranges([each[name].tolist() for each in expected], rows)
    if content.masked:
        found = by_range(docs.masks(*columns(rows)), len(rows), np.uint8)
        assert found == ranges([each["loss_mask"].tolist() for each in expected], rows)
    assert plain(pickle.loads(pickle.dumps(docs))[:]) == plain(expected)


@given(
    st.lists(st.integers(1, 40), min_size=1, max_size=20),
    st.lists(st.sampled_from(sorted(STEPS)), min_size=1, max_size=3),
    st.sampled_from(["best_fit", "concat", "pad"]),
    st.integers(1, 3),
    st.booleans(),
)
def test_every_token_that_they_make_is_a_target_exactly_once(
    lengths: list[int], steps: list[str], strategy: str, hosts: int, masked: bool
) -> None:
    tokens = builders.documents(lengths)
    masks = [each % 3 > 0 for each in tokens] if masked else None
    docs: Documents = ArrayDocuments(tokens, masks)
    expected = docs[:]
    for step in steps:
        docs, expected = STEPS[step](docs), by_hand(expected, step)
    made = [each["tokens"] for each in expected]
    oracle = ArrayDocuments(made, [each["loss_mask"] for each in expected] if masked else None)
    rows = jaxdata.pack(docs, seq_len=8, strategy=strategy)
    batches = [
        batch
        for host in range(hosts)
        for batch in jaxdata.Loader(rows, batch_size=2 * hosts, shard=(host, hosts), prefetch=0)
    ]
    assert_exactly_once(batches, [oracle])


def test_a_seed_makes_the_same_of_a_document_for_ever() -> None:
    docs = ArrayDocuments([[*range(1, 13)], [*range(1, 13)]])

    def sample(document: Document, rng: np.random.Generator) -> Any:
        return rng.permutation(document["tokens"])[:4]

    assert plain(docs.map(sample, seed=0)[:]) == [
        {"tokens": [3, 2, 12, 5]},
        {"tokens": [8, 1, 7, 10]},
    ]
    first, second = (docs.map(sample, seed=seed) for seed in (0, 1))
    assert first.fingerprint != second.fingerprint
    assert plain(first[:]) != plain(second[:])


@pytest.fixture
def docs(tmp_path: Path) -> Documents:
    """On disk, with masks and a side array."""
    tokens = builders.documents(60)
    masks, weights = ([f(each) for each in tokens] for f in (lambda t: t % 3 > 0, np.sqrt))
    folder = builders.dataset(
        tmp_path / "d",
        {"web": tokens},
        masks={"web": masks},
        side={"web": {"w": [each.astype(np.float32) for each in weights]}},
    )
    return jaxdata.open_dataset(folder).source("train", "web")


class Counted:
    """A function that counts its calls, and has a fingerprint of its own."""

    fingerprint = "1"

    def __init__(self, function: Callable[[Document], Any]) -> None:
        self.function, self.calls = function, 0

    def __call__(self, document: Document) -> Any:
        self.calls += 1
        return self.function(document)


@pytest.mark.parametrize(
    ("kind", "function", "before"), [("filter", starts_even, 0), ("map", each_twice, 1)]
)
def test_what_planning_needs_is_found_once_and_kept_in_the_dataset(
    docs: Documents, kind: str, function: Any, before: int
) -> None:
    counted = Counted(function)
    found = getattr(docs, kind)(counted)
    assert counted.calls == before, "a map is asked of one document, which arrays there are"
    lengths = found.lengths.tolist()
    assert counted.calls == before + len(docs)
    assert docs.store is not None
    (file,) = Path(docs.store.url, "plans").iterdir()
    assert file.name.startswith(f"{kind}-")
    again = getattr(docs, kind)(counted)
    assert again.lengths.tolist() == lengths
    assert counted.calls == 2 * before + len(docs)
    counted.fingerprint = "2"
    assert getattr(docs, kind)(counted).lengths.tolist() == lengths
    assert counted.calls == 3 * before + 2 * len(docs)


def test_all_cores_find_the_same_as_one(
    docs: Documents, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    alone = docs.map(without_some, seed=0).lengths.tolist()
    (file,) = (tmp_path / "d" / "plans").iterdir()
    file.unlink()
    monkeypatch.setattr(functions, "_PATIENCE", -1)
    monkeypatch.setattr(functions, "_TOKENS", 300)
    assert docs.map(without_some, seed=0).lengths.tolist() == alone
    with pytest.raises(InputError, match=r"returned 5 of document 5\d of train/web: expected Tr"):
        len(docs.filter(lambda document: True if document["tokens"][0] < 1_500 else 5))


def test_workers_take_functions_that_have_no_name(docs: Documents) -> None:
    least = 100
    some = docs.filter(lambda document: document["tokens"][0] > least).map(
        lambda document: document["tokens"][::-1], same_length=True
    )
    rows = jaxdata.pack(some, seq_len=32)
    loaders = [jaxdata.Loader(rows, batch_size=4, num_workers=n, extras="w") for n in (0, 2)]
    assert_same_batches(*loaders)


def test_a_run_goes_on_with_the_same_function_and_names_another(docs: Documents) -> None:
    def through(least: int) -> jaxdata.Loader:
        def long(document: Document) -> bool:
            return len(document["tokens"]) > least

        return jaxdata.Loader(jaxdata.pack(docs.filter(long), seq_len=16), batch_size=2)

    first = through(5)
    next(first)
    state, expected = first.get_state(), next(first)
    again = through(5)
    again.set_state(state)
    for name, values in next(again).items():
        assert values.tolist() == expected[name].tolist()
    with pytest.raises(
        StateMismatch, match=r"functions\[train/web\] was \['filter .*long [0-9a-f]{8}'\]"
    ):
        through(6).set_state(state)


def test_documents_keep_the_numbers_and_files_of_their_source(docs: Documents) -> None:
    some = docs.filter(starts_even)
    numbers = some.document.tolist()  # type: ignore[attr-defined]
    assert numbers == [n for n in range(len(docs)) if docs[n]["tokens"][0] % 2 == 0]
    made = some.map(each_twice)
    assert made.base is docs.base
    assert [made.origin(at) for at in range(len(made))] == [docs.origin(n) for n in numbers]
    assert [made.numbers_of(n) for n in range(len(docs))] == [
        [numbers.index(n)] if n in numbers else [] for n in range(len(docs))
    ]
    last = int(docs.lengths[numbers[0]]) - 1
    found = made.in_base(np.array([0, 0]), np.array([1, 10**6]))
    assert [each.tolist() for each in found] == [[numbers[0]] * 2, [min(1, last), last]]
    assert made.page_ends(64).tolist() == some.page_ends(64).tolist()
    batch = next(jaxdata.Loader(jaxdata.pack(made, seq_len=64), batch_size=2, extras="document"))
    assert {*batch["document"].ravel().tolist()} <= {-1, *numbers}


def test_a_list_that_is_not_of_its_source_is_named(docs: Documents) -> None:
    some: Any = docs.filter(starts_even)
    (file,) = [some.lengths[:0], *Path(docs.store.url, "plans").iterdir()][1:]  # type: ignore[union-attr]
    content = bytearray(file.read_bytes())
    content[:4] = content[4:8]
    file.write_bytes(content)
    with pytest.raises(
        DatasetError, match="is damaged: it is not a list of documents of train/web"
    ):
        jaxdata.pack(docs.filter(starts_even), seq_len=8)


def test_a_map_may_add_masks_and_side_arrays_and_leave_what_it_does_not_touch() -> None:
    docs = ArrayDocuments([[1, 2, 0], [3, 0]], side={"w": [[5, 6, 7], [8, 9]]})

    def marked(document: Document) -> Any:
        tokens = document["tokens"]
        return {"tokens": tokens + 1, "loss_mask": tokens > 1, "v": tokens.astype(np.int16)}

    assert plain(docs.map(marked)[:]) == [
        {"tokens": [2, 3, 1], "loss_mask": [False, True, False], "v": [1, 2, 0], "w": [5, 6, 7]},
        {"tokens": [4, 1], "loss_mask": [True, False], "v": [3, 0], "w": [8, 9]},
    ]
    with pytest.raises(
        InputError, match="side array 'targets': batches have another array of that"
    ):
        docs.map(lambda document: {"tokens": [1], "w": [1], "targets": [1]})


def test_long_documents_are_made_once_for_windows_read_together(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    docs = ArrayDocuments(builders.documents([900, 20, 800, 30]))
    counted = Counted(backwards)
    made = docs.map(counted, same_length=True)
    rows = jaxdata.pack(made, seq_len=16, block_bytes=2_000)

    def calls(held: int) -> int:
        monkeypatch.setattr(functions, "_HELD_BYTES", held)
        counted.calls = 0
        for number in range(len(rows)):
            rows[number]
        return counted.calls

    assert calls(0) > 100
    assert 4 <= calls(10**6) <= 6, "those that are read whole, and others once"
