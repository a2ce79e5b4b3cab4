"""Side arrays of documents in memory, and of objects of users' own."""

from __future__ import annotations

import pickle
from typing import Any, ClassVar

import numpy as np
import pytest

import jaxdata
from jaxdata.errors import DatasetError, InputError
from jaxdata.testing import assert_same_batches

TOKENS = [[5, 6, 7, 0], [8, 9, 0]]
PATCHES = [[-1, 4, 5, -1], [0, -1, 2]]


def loader(docs: Any, **more: Any) -> jaxdata.Loader:
    rows = jaxdata.pack(docs, seq_len=5)
    return jaxdata.Loader(rows, batch_size=2, extras=("patch", "target_patch"), **more)


class Images:
    """A user's object: image patches beside tokens."""

    lengths = np.array([4, 3])
    side: ClassVar[dict[str, Any]] = {"patch": "int32"}

    def __getitem__(self, index: int) -> dict[str, Any]:
        return {"tokens": TOKENS[index], "patch": PATCHES[index]}


def test_an_object_of_ones_own_is_as_documents_in_memory() -> None:
    values = [np.array(each, np.int32) for each in PATCHES]
    docs = jaxdata.ArrayDocuments(TOKENS, side={"patch": values})
    batches = list(loader(docs))
    assert batches[0]["patch"].dtype == np.int32
    found = {
        int(token): int(patch)
        for each in batches
        for token, patch in zip(each["inputs"].ravel(), each["patch"].ravel(), strict=True)
    }
    assert {token: found[token] for token in (5, 6, 7, 8, 9)} == {5: -1, 6: 4, 7: 5, 8: 0, 9: -1}
    assert_same_batches(loader(Images()), batches)
    assert_same_batches(loader(pickle.loads(pickle.dumps(docs))), batches)
    from_worker = loader(Images(), num_workers=1)
    assert_same_batches(from_worker, batches)
    from_worker.close()


def test_fingerprints_cover_them() -> None:
    plain = jaxdata.ArrayDocuments(TOKENS)
    first, other = (
        jaxdata.ArrayDocuments(TOKENS, side={"patch": [np.array(each, dtype) for each in PATCHES]})
        for dtype in (np.int32, np.int64)
    )
    assert len({plain.fingerprint, first.fingerprint, other.fingerprint}) == 3


def test_what_does_not_fit_is_refused() -> None:
    says = {
        (("patch", ((1, 2), (3, 4, 5)))): r"document 0: 4 tokens, 'patch' of shape \(2,\)",
        (("patch", ((1, 2, 3, 4),))): r"'patch' of 1 document, tokens of 2",
        (("patch", ((1, 2, 3, 4), (0.5, 6, 7)))): (
            "'patch' of document 1 is of float64, of document 0 of int64; give arrays of one dtype"
        ),
        (("patch", ("abcd", "efg"))): r"document 0: 4 tokens, 'patch' of shape \(\)",
        (("patch", (tuple("abcd"), tuple("efg")))): r"'patch' is of <U1; expected whole numbers or",
        (("targets", ((1, 2, 3, 4), (5, 6, 7)))): r"'targets': batches have another array of that",
        (("target_x", ((1, 2, 3, 4), (5, 6, 7)))): r"'target_x': batches have another array of",
    }
    for (name, values), message in says.items():
        with pytest.raises(InputError, match=message):
            jaxdata.ArrayDocuments(TOKENS, side={name: values})


@pytest.mark.parametrize(
    ("patches", "dtype", "message"),
    [
        ([[1, 2, 3], [4, 5, 6]], "int32", r"document 0 has 3 values of 'patch', expected 4 by its"),
        (
            [[1, 2, 3, 300], [4, 5, 6]],
            "int8",
            r"'patch' of document 0 holds a number that int8 does",
        ),
    ],
)
def test_an_object_that_breaks_its_word(patches: Any, dtype: str, message: str) -> None:
    class Wrong(Images):
        side: ClassVar[dict[str, Any]] = {"patch": dtype}

        def __getitem__(self, index: int) -> dict[str, Any]:
            return {"tokens": TOKENS[index], "patch": patches[index]}

    with pytest.raises(DatasetError, match=message):
        list(loader(Wrong()))


def test_whole_numbers_stay_whole_beside_those_of_another_dtype() -> None:
    large = 2**53 + 1  # no float64

    class Large(Images):
        side: ClassVar[dict[str, Any]] = {"patch": "int64"}

        def __getitem__(self, index: int) -> dict[str, Any]:
            values = np.array([[large] * 4, [1, 2, 3]][index], (np.int64, np.uint64)[index])
            return {"tokens": TOKENS[index], "patch": values}

    assert large in next(loader(Large()))["patch"]


def test_an_object_without_what_it_declares() -> None:
    class Lacking(Images):
        side: ClassVar[dict[str, Any]] = {"patch": "int32", "height": "int8"}

    with pytest.raises(DatasetError, match="document 0 has no 'height'"):
        next(loader(Lacking()))
