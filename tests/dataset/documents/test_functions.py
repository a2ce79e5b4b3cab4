"""Documents through functions: filtered and mapped, against lists; what is kept, and refused."""

import importlib
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, strategies as st

import jaxdata
from jaxdata import tokenizers
from jaxdata.base.errors import DatasetError, InputError, StateMismatch
from jaxdata.base.seeds import derive
from jaxdata.dataset import array_documents, functions
from jaxdata.dataset.array_documents import ArrayDocuments
from jaxdata.dataset.documents import Document, Documents
from jaxdata.look.document import traced_lines
from jaxdata.look.trace import Tracer
from jaxdata.testing import assert_same_batches
from tests import builders
from tests.dataset.documents.test_contract_of_documents import (
    Content,
    asked_of,
    by_range,
    columns,
    contents,
    ranges,
)

Patch = pytest.MonkeyPatch


def starts_even(document: Document) -> bool:
    return len(document["tokens"]) > 0 and int(document["tokens"][0]) % 2 == 0


def backwards(document: Document) -> Document:
    return {name: values[::-1] for name, values in document.items()}


def each_twice(document: Document) -> Document:
    return {name: values.repeat(2) for name, values in document.items()}


def without_some(document: Document, rng: np.random.Generator) -> Document:
    left = rng.random(len(document["tokens"])) < 0.7
    return {name: values[left] for name, values in document.items()}


def marked(document: Document) -> Any:
    """New masks and a new side array; `w` stays."""
    tokens = document["tokens"].astype(np.int64)
    return {"tokens": tokens // 2, "loss_mask": tokens % 5 > 1, "v": (tokens % 99).astype(np.int8)}


STEPS: dict[str, Callable[[Documents], Documents]] = {
    "starts even": lambda docs: docs.filter(starts_even),
    "backwards": lambda docs: docs.map(backwards, same_length=True),
    "each twice": lambda docs: docs.map(each_twice),
    "without some": lambda docs: docs.map(without_some, seed=3),
    "marked": lambda docs: docs.map(marked, same_length=True),
}


def by_hand(documents: list[Document], step: str) -> list[Document]:
    """The same in plain Python."""
    if step == "starts even":
        return [each for each in documents if starts_even(each)]
    if step == "without some":
        rngs = [np.random.default_rng(derive(3, "document", n)) for n in range(len(documents))]
        return [without_some(*pair) for pair in zip(documents, rngs, strict=True)]
    if step == "marked":
        there = any(len(each["tokens"]) for each in documents)
        return [each | marked(each) for each in documents] if there else documents
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
    assert (docs.name, len(docs)) == ("train/web", len(expected))
    docs.check_lengths()
    rows = asked_of(data, Content([each["tokens"].tolist() for each in expected], content.masked))
    for name, of in {"tokens": docs, **docs.side}.items():
        found = by_range(of.tokens(*columns(rows)), len(rows), of.dtype)
        assert found == ranges([each[name].tolist() for each in expected], rows)
    if docs.masked and expected:
        found = by_range(docs.masks(*columns(rows)), len(rows), np.uint8)
        assert found == ranges([each["loss_mask"].tolist() for each in expected], rows)
    assert plain(pickle.loads(pickle.dumps(docs))[:]) == plain(expected)


def test_a_seed_makes_the_same_of_a_document_for_ever() -> None:
    docs = ArrayDocuments([[*range(1, 13)], [*range(1, 13)]])

    def sample(document: Document, rng: np.random.Generator) -> Any:
        return rng.permutation(document["tokens"])[:4]

    first, second = (docs.map(sample, seed=seed) for seed in (0, 1))
    assert plain(first[:]) == [{"tokens": [3, 2, 12, 5]}, {"tokens": [8, 1, 7, 10]}]
    assert first.fingerprint != second.fingerprint


@pytest.fixture
def docs(tmp_path: Path) -> Documents:
    """On disk, with masks and a side array."""
    tokens = builders.documents(60)
    masks, weights = ([f(each) for each in tokens] for f in (lambda t: t % 3 > 0, np.sqrt))
    side = {"web": {"w": [each.astype(np.float32) for each in weights]}}
    folder = builders.dataset(tmp_path / "d", {"web": tokens}, masks={"web": masks}, side=side)
    return jaxdata.open_dataset(folder).source("train", "web")


class Counted:
    """A function that counts its calls, and has a fingerprint of its own."""

    fingerprint = "1"

    def __init__(self, function: Callable[[Document], Any]) -> None:
        self.function, self.calls = function, 0

    def __call__(self, document: Document) -> Any:
        self.calls += 1
        return self.function(document)


KINDS = [("filter", starts_even, 0), ("map", each_twice, 1)]


@pytest.mark.parametrize(("kind", "function", "before"), KINDS)
def test_what_planning_needs_is_found_once_and_kept_in_the_dataset(
    docs: Documents, kind: str, function: Any, before: int
) -> None:
    counted = Counted(function)
    lengths = getattr(docs, kind)(counted).lengths.tolist()
    assert counted.calls == before + len(docs), "a map is asked of one for the names of its arrays"
    assert docs.store is not None
    (file,) = Path(docs.store.url, "plans").iterdir()
    assert getattr(docs, kind)(counted).lengths.tolist() == lengths
    assert counted.calls == 2 * before + len(docs)
    counted.fingerprint = "2"
    assert getattr(docs, kind)(counted).lengths.tolist() == lengths
    assert counted.calls == 3 * before + 2 * len(docs)
    if kind == "filter":
        content = bytearray(file.read_bytes())
        content[:4] = content[4:8]
        file.write_bytes(content)
        counted.fingerprint = "1"
        with pytest.raises(DatasetError, match="it is not a list of documents of train/web"):
            docs.filter(counted).check_lengths()


def test_all_cores_find_the_same_as_one(
    docs: Documents, monkeypatch: Patch, tmp_path: Path
) -> None:
    def some(document: Document, rng: np.random.Generator) -> Any:  # sent by value: a quick start
        left = rng.random(len(document["tokens"])) < 0.7
        return {name: values[left] for name, values in document.items()}

    alone = docs.map(some, seed=0).lengths.tolist()
    (file,) = (tmp_path / "d" / "plans").iterdir()
    file.unlink()
    monkeypatch.setattr(functions, "_ALONE", 0)
    monkeypatch.setattr(functions, "_TOKENS", 300)
    assert docs.map(some, seed=0).lengths.tolist() == alone
    with pytest.raises(InputError, match=r"returned 5 of document 5\d of train/web: expected Tr"):
        len(docs.filter(lambda document: True if document["tokens"][0] < 1_500 else 5))


def test_a_function_may_use_a_tokenizer_and_workers_take_it_without_a_name() -> None:
    first, same, other = (tokenizers.load("bytes") for _ in range(3))
    docs = ArrayDocuments([[97, 98, 256], [99, 256]], side={"w": [[1, 2, 3], [4, 5]]})

    def has_a(tokenizer: tokenizers.Tokenizer) -> Documents:
        return docs.filter(lambda document: "a" in tokenizer.decode(document["tokens"]))

    other.eod_id = 255
    assert plain(has_a(first)[:]) == [{"tokens": [97, 98, 256], "w": [1, 2, 3]}]
    assert has_a(first).fingerprint == has_a(same).fingerprint != has_a(other).fingerprint
    rows = jaxdata.pack(has_a(first), seq_len=2)
    loaders = [jaxdata.Loader(rows, batch_size=1, num_workers=n, extras="w") for n in (0, 1)]
    assert_same_batches(*loaders)


def test_a_run_goes_on_with_the_same_function_and_names_another(docs: Documents) -> None:
    def through(least: int) -> jaxdata.Loader:
        def long(document: Document) -> bool:
            return len(document["tokens"]) > least

        return jaxdata.Loader(jaxdata.pack(docs.filter(long), seq_len=16), batch_size=2)

    state = through(5).get_state()
    through(5).set_state(state)
    said = r"functions\[train/web\] was \['filter .*long [0-9a-f]{8}'\]"
    with pytest.raises(StateMismatch, match=said):
        through(6).set_state(state)


def test_documents_keep_the_numbers_and_files_of_their_source(docs: Documents) -> None:
    some = docs.filter(starts_even)
    numbers = some.document.tolist()  # type: ignore[attr-defined]
    made = some.map(each_twice)
    names = [each.rpartition(" ")[0] for each in made.functions]
    assert names == [f"filter {__name__}:starts_even", f"map {__name__}:each_twice"]
    assert [made.origin(at) for at in range(len(made))] == [docs.origin(n) for n in numbers]
    for n in range(len(docs)):
        assert made.numbers_of(n) == ([numbers.index(n)] if n in numbers else [])
    last = int(docs.lengths[numbers[0]]) - 1
    found = made.in_base(np.array([0, 0]), np.array([1, 10**6]))
    assert [each.tolist() for each in found] == [[numbers[0]] * 2, [min(1, last), last]]
    assert made.page_ends(64).tolist() == some.page_ends(64).tolist()


def test_long_documents_and_those_with_masks_are_made_once_while_there_is_room(
    monkeypatch: Patch,
) -> None:
    tokens = builders.documents([900, 20, 800, 30])
    for docs, seq_len in (
        (ArrayDocuments(tokens), 16),
        (ArrayDocuments(tokens, [each % 2 for each in tokens]), 2_000),
    ):
        calls = []
        for held_bytes in (2**26, 100):
            monkeypatch.setattr(array_documents, "_HELD_BYTES", held_bytes)
            made = docs.map(counted := Counted(backwards), same_length=True)
            rows = jaxdata.pack(made, seq_len=seq_len, block_bytes=2_000)
            counted.calls = 0
            for number in range(len(rows)):
                assert rows[number]["inputs"].any()
            calls.append(counted.calls)
        assert 4 <= calls[0] <= 6, "those that are read whole, and others once"
        assert calls[1] > 6


def raising(_: Document) -> Any:
    raise KeyError("nothing of that name")


def test_what_is_no_document_is_named() -> None:
    """What is wrong in other ways is refused as of a user's object."""
    docs = ArrayDocuments([[1, 2, 0], [3, 0]], [[1, 1, 0], [1, 0]], "train/web")
    with pytest.raises(InputError, match="5 is no function: expected one of a document"):
        docs.map(5)  # type: ignore[arg-type]
    with pytest.raises(InputError, match=r"seed=0\.5: expected a whole number"):
        docs.map(backwards, seed=0.5)  # type: ignore[arg-type]
    with pytest.raises(InputError, match=r"raising of document 0 of .*: KeyError: 'nothing of tha"):
        docs.map(raising)

    def one(document: Document) -> Any:
        return document["tokens"][:1]

    with pytest.raises(InputError, match=r"one of train/web: document 0: its tokens are of shape"):
        docs.map(one, same_length=True)


def test_a_function_that_makes_other_lengths_than_planned_is_named() -> None:
    docs, least = ArrayDocuments([[1, 2, 0], [3, 0]], name="train/web"), 1
    made = docs.map(Counted(lambda document: document["tokens"][:least]))
    assert made.lengths.tolist() == [1, 1]
    least = 2
    with pytest.raises(DatasetError, match="of train/web: document 1 has 2 tokens, and had 1 when"):
        made[1]


PREPARE = """
def long(document):
    return len(document["tokens"]) > 20

def prepare(docs):
    return docs if docs.name.startswith("val/") else docs.filter(long)

def nothing(docs):
    pass
"""


def test_a_config_names_a_function_of_documents(
    docs: Documents, tmp_path: Path, monkeypatch: Patch
) -> None:
    (tmp_path / "prepared.py").write_text(PREPARE)
    monkeypatch.syspath_prepend(tmp_path)

    def config(transform: str) -> dict[str, Any]:
        source = {"dataset": str(tmp_path / "d"), "transform": transform}
        return {"sources": {"web": source}, "pack": {"seq_len": 16}, "loader": {"batch_size": 2}}

    by_hand = docs.filter(importlib.import_module("prepared").long)
    rows = jaxdata.mix({"web": jaxdata.pack(by_hand, seq_len=16)})
    loader = jaxdata.load(config("prepared:prepare"))
    assert_same_batches(loader, jaxdata.Loader(rows, batch_size=2))
    for number, length in enumerate(docs.lengths[:9].tolist()):
        found = Tracer(loader, None).described("web", number)
        said = "\n".join(map(str, traced_lines([found], 80)))
        assert ("left out by filter prepared:long " in said) is (length <= 20)
    with pytest.raises(InputError, match=r"^prepared:nothing returned a NoneType for train/web"):
        jaxdata.load(config("prepared:nothing"))
