"""Megatron's order: vectors of its own functions, and a slow implementation that walks."""

from __future__ import annotations

import json
import math
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import jaxdata
from jaxdata.errors import InputError, StateMismatch
from jaxdata.megatron import blending
from jaxdata.megatron import gpt_rows as table
from jaxdata.megatron.blending import blend_order, normalized, places_in_datasets
from jaxdata.megatron.masking import FirstTokensMasked
from jaxdata.megatron.order import (
    document_order,
    plan_epochs,
    sample_order,
    split_range,
)
from jaxdata.testing import (
    assert_resumes_everywhere,
    assert_same_batches,
    assert_same_on_hosts,
    distinct_documents,
    write_dataset,
)
from tests.documents.test_foreign import made, only_source, write_megatron
from tests.format.strangers import edit_json, set_value

LENGTHS = np.array([3, 7, 0, 5, 2, 11])
FORWARD = [(0, 0), (1, 1), (1, 5), (3, 2), (4, 1), (5, 3), (5, 7)]


def sample_index(
    lengths: np.ndarray, seq_len: int, *, extra: int = 1, drop_last: bool = True
) -> tuple[np.ndarray, np.ndarray]:
    """Where samples begin: (position in the order of documents, offset in that document)."""
    ends = np.cumsum(lengths)
    tokens = int(ends[-1]) - extra
    # Megatron computes the number with an incomplete last sample in single precision.
    samples = tokens // seq_len if drop_last else int(np.ceil(np.float32(tokens) / seq_len))
    last = np.minimum(np.arange(1, samples + 1) * seq_len, tokens) + extra - 1
    place = np.searchsorted(ends, last, side="right")
    offset = last - (ends - lengths)[place] + 1 - extra
    return np.append(0, place), np.append(0, offset)


@pytest.mark.parametrize(
    ("lengths", "given", "expected"),
    [
        (LENGTHS, {}, FORWARD),
        (LENGTHS, {"drop_last": False}, [*FORWARD, (5, 10)]),
        (LENGTHS, {"extra": 0}, [*FORWARD, (5, 11)]),
        (LENGTHS[::-1], {}, [(0, 0), (0, 4), (0, 8), (1, 1), (2, 3), (4, 2), (4, 6)]),
    ],
)
def test_sample_index_vectors(
    lengths: np.ndarray, given: dict[str, Any], expected: list[tuple[int, int]]
) -> None:
    places, offsets = sample_index(lengths, 4, **given)
    assert list(zip(places.tolist(), offsets.tolist(), strict=True)) == expected


@pytest.mark.parametrize(
    ("num_samples", "epochs", "separate", "documents", "shuffle"),
    [
        (6, 1, False, [2, 1, 5, 0, 4, 3], [0, 4, 3, 2, 5, 1]),
        (
            8,
            2,
            True,
            [2, 1, 5, 0, 4, 3, 0, 4, 3, 2, 5, 1],
            [1, 0, 3, 2, 5, 4, 8, 9, 11, 7, 10, 12, 6],
        ),
        (
            12,
            2,
            False,
            [1, 2, 5, 2, 3, 4, 1, 0, 4, 5, 0, 3],
            [7, 11, 2, 3, 1, 9, 5, 4, 0, 8, 6, 10, 12],
        ),
    ],
)
def test_order_vectors(
    num_samples: int, epochs: int, separate: bool, documents: list[int], shuffle: list[int]
) -> None:
    plan = plan_epochs(int(LENGTHS.sum()), 4, num_samples)
    assert (plan.count, plan.separate) == (epochs, separate)
    random = np.random.RandomState(1234)
    order = document_order(np.arange(6, dtype=np.int32), plan, random)
    assert order.tolist() == documents
    assert sample_order(plan, random).tolist() == shuffle
    source = jaxdata.ArrayDocuments(distinct_documents(LENGTHS))
    assert len(jaxdata.megatron.gpt(source, seq_len=4, num_samples=num_samples)) == len(shuffle)


def test_sample_index_of_one_epoch_vector() -> None:
    places, offsets = sample_index(LENGTHS[[2, 1, 5, 0, 4, 3]], 4)
    expected = [(0, 0), (1, 4), (2, 1), (2, 5), (2, 9), (3, 2), (5, 1)]
    assert list(zip(places.tolist(), offsets.tolist(), strict=True)) == expected


@pytest.mark.parametrize(
    ("weights", "size", "datasets", "samples"),
    [
        ([0.5, 0.3, 0.2], 12, "012010201001", "000112132453"),
        ([1 / 3, 1 / 3, 1 / 3], 7, "0120120", "0001112"),
        ([0.7, 0.2, 0.1], 10, "0102000100", None),
    ],
)
def test_blend_vectors(weights: list[float], size: int, datasets: str, samples: str | None) -> None:
    order = blend_order(normalized(weights), size)
    assert "".join(map(str, order)) == datasets
    if samples:
        assert "".join(map(str, places_in_datasets(order, 3))) == samples


@pytest.mark.parametrize(("sizes", "datasets"), [([3, 1, 2], "021020"), ([5, 2], "0100100")])
def test_exhaustive_blend_vectors(sizes: list[int], datasets: str) -> None:
    order = blend_order(normalized(sizes), sum(sizes), sizes)
    assert "".join(map(str, order)) == datasets


def test_split_ranges() -> None:
    parts = [split_range("969, 30, 1", part, 12_345) for part in ("train", "valid", "test")]
    assert parts == [range(11_962), range(11_962, 12_333), range(12_333, 12_345)]
    assert split_range("1", "train", 7) == range(7)
    with pytest.raises(InputError, match=r"part='val': expected train \| valid \| test"):
        split_range("1,1", "val", 7)
    with pytest.raises(InputError, match=r"split='none': expected one to three weights, like '969"):
        split_range("none", "train", 7)


class SlowGpt:
    """Megatron's GPT dataset as its documentation of indices says it, one token after the other."""

    def __init__(
        self,
        documents: Sequence[np.ndarray],
        seq_len: int,
        seed: int,
        num_samples: int | None,
        chosen: Sequence[int] | None = None,
        extra: int = 1,
        drop_last: bool = True,
    ) -> None:
        self.documents, self.seq_len, self.extra = documents, seq_len, extra
        ids = list(range(len(documents))) if chosen is None else list(chosen)
        tokens = sum(len(documents[one]) for one in ids)
        epochs = 1
        while num_samples is not None and epochs * tokens < num_samples * seq_len + extra:
            epochs += 1
        self.length = (epochs * tokens - extra) // seq_len
        if not drop_last:
            self.length = math.ceil((epochs * tokens - extra) / seq_len)
        separate, before = False, 0
        if epochs > 1 and num_samples is not None:
            before = ((epochs - 1) * tokens - extra) // seq_len
            separate = num_samples - before < int(0.80 * ((tokens - extra) // seq_len))
        random = np.random.RandomState(seed)
        self.order = self._documents(ids, epochs, separate, random)
        self.samples = self._walk()
        cut = before if separate else self.length
        self.shuffle = []
        for part in (range(cut), range(cut, self.length)) if separate else (range(cut),):
            shuffled = np.array(part, np.uint32)
            random.shuffle(shuffled)
            self.shuffle += shuffled.tolist()

    @staticmethod
    def _documents(ids: list[int], epochs: int, separate: bool, random: Any) -> list[int]:
        if separate:
            first = SlowGpt._documents(ids, epochs - 1, False, random)
            return first + SlowGpt._documents(ids, 1, False, random)
        shuffled = np.array(ids * epochs, np.int32)
        random.shuffle(shuffled)
        return shuffled.tolist()  # type: ignore[no-any-return]

    def _walk(self) -> list[tuple[int, int]]:
        place, offset, found = 0, 0, [(0, 0)]
        while len(found) <= self.length:
            remaining = self.seq_len + self.extra
            while remaining:
                left = len(self.documents[self.order[place]]) - offset
                remaining -= left
                if remaining <= 0:
                    offset += remaining + left - self.extra
                    remaining = 0
                elif place == len(self.order) - 1:
                    offset += left - self.extra
                    remaining = 0
                else:
                    place, offset = place + 1, 0
            found.append((place, offset))
        return found

    def text(self, row: int) -> np.ndarray:
        (first, begin), (last, end) = self.samples[self.shuffle[row] :][:2]
        if first == last:
            return self.documents[self.order[first]][begin : end + self.extra]
        parts = [self.documents[self.order[first]][begin:]]
        parts += [self.documents[self.order[place]] for place in range(first + 1, last)]
        return np.concatenate([*parts, self.documents[self.order[last]][: end + self.extra]])


def texts(rows: Any) -> list[list[int]]:
    """Inputs of every row with its last target; and each target is the input after it."""
    found = []
    for k in range(len(rows)):
        row = rows[k]
        assert (row["targets"][:-1] == row["inputs"][1:]).all()
        found.append([*row["inputs"].tolist(), int(row["targets"][-1])])
    return found


lengths_of_some = st.lists(st.integers(0, 20), min_size=1, max_size=15).filter(sum)


@settings(max_examples=200)
@given(
    lengths_of_some,
    st.integers(1, 12),
    st.integers(0, 2**32 - 1),
    st.none() | st.integers(0, 60),
    st.booleans(),
)
def test_rows_are_those_of_the_slow_implementation(
    lengths: list[int], seq_len: int, seed: int, num_samples: int | None, reset: bool
) -> None:
    documents = distinct_documents(lengths)
    source = jaxdata.ArrayDocuments(documents)
    if sum(lengths) <= seq_len:
        with pytest.raises(InputError, match=f"a row of seq_len={seq_len} needs {seq_len + 1}"):
            jaxdata.megatron.gpt(source, seq_len=seq_len, seed=seed, num_samples=num_samples)
        return
    rows = jaxdata.megatron.gpt(
        source, seq_len=seq_len, seed=seed, num_samples=num_samples, reset=reset
    )
    slow = SlowGpt(documents, seq_len, seed, num_samples)
    assert len(rows) == slow.length
    assert texts(rows) == [slow.text(k).tolist() for k in range(slow.length)]


@settings(max_examples=30)
@given(lengths_of_some, st.integers(1, 12), st.integers(0, 9))
def test_other_fields_of_a_row(lengths: list[int], seq_len: int, seed: int) -> None:
    """Each document ends with EOD, 0; from ids alone, what Megatron makes of them."""
    documents = [np.append(np.arange(1, n + 1), 0) for n in lengths]
    source = jaxdata.ArrayDocuments(documents)
    if sum(map(len, documents)) <= seq_len:
        return
    given: dict[str, Any] = {"seq_len": seq_len, "seed": seed, "num_samples": 30}
    plain = jaxdata.megatron.gpt(source, **given)
    reset = jaxdata.megatron.gpt(source, **given, reset=True, eod_mask_loss=True)
    masked = jaxdata.megatron.gpt(source, **given, eod_mask_loss=True)
    for k in range(len(plain)):
        row, other = plain[k], reset[k]
        assert row["loss_mask"].all()
        assert (row["segment_ids"] == 1).all()
        assert row["positions"].tolist() == list(range(seq_len))
        after = np.append(False, row["inputs"][:-1] == 0)
        assert other["segment_ids"].tolist() == (1 + np.cumsum(after)).tolist()
        starts = np.maximum.accumulate(np.where(after, np.arange(seq_len), 0))
        assert other["positions"].tolist() == (np.arange(seq_len) - starts).tolist()
        for one in (other, masked[k]):
            assert one["loss_mask"].tolist() == (row["inputs"] != 0).tolist()
            assert (one["targets"] == row["targets"]).all()
        assert (masked[k]["segment_ids"] == 1).all()


@settings(max_examples=200)
@given(
    lengths_of_some,
    st.integers(1, 12),
    st.none() | st.integers(0, 60),
    st.booleans(),
    st.sampled_from([0, 1]),
)
def test_last_samples_and_tokens_of_the_slow_implementation(
    lengths: list[int], seq_len: int, num_samples: int | None, reset: bool, extra: int
) -> None:
    """Of validation data whose rest is a row too, and of samples without another token."""
    documents = distinct_documents(lengths)
    given = {"seq_len": seq_len, "seed": 5, "num_samples": num_samples, "reset": reset}
    given |= {"add_extra_token_to_sequence": extra, "part": "valid"}
    given["drop_last_partial_validation_sequence"] = False
    source = jaxdata.ArrayDocuments(documents)
    if sum(lengths) <= extra:
        with pytest.raises(InputError, match=f"1 tokens; a row of seq_len={seq_len} needs 2"):
            jaxdata.megatron.gpt(source, **given)
        return
    rows = jaxdata.megatron.gpt(source, **given)
    slow = SlowGpt(documents, seq_len, 5, num_samples, extra=extra, drop_last=False)
    assert len(rows) == slow.length
    for number in range(slow.length):
        row, text = rows[number], slow.text(number).tolist()
        filled = min(len(text), seq_len)
        padded = [*text, *[0] * seq_len]
        assert row["inputs"].tolist() == padded[:seq_len]
        trained = row["loss_mask"].tolist()
        assert trained == [k < len(text) - 1 for k in range(seq_len)]
        assert (row["targets"] * trained).tolist() == row["targets"].tolist()
        assert row["targets"][trained].tolist() == text[1 : 1 + sum(trained)]
        assert (row["segment_ids"] > 0).tolist() == [k < filled for k in range(seq_len)]


@pytest.mark.slow
def test_a_sample_too_many() -> None:
    """33,554,435 samples are 33,554,436 in single precision; Megatron's last has one token."""
    source = jaxdata.ArrayDocuments([np.arange(2**25 + 4) % 50_000 + 1])
    rows = jaxdata.megatron.gpt(
        source, seq_len=1, part="valid", drop_last_partial_validation_sequence=False
    )
    _, samples, _ = rows.table._order.arrays
    last = int(np.flatnonzero(samples == 2**25 + 3)[0])
    assert len(rows) == 2**25 + 4
    expected = {"inputs": (2**25 + 3) % 50_000 + 1, "targets": 0, "loss_mask": 0, "segment_ids": 1}
    assert {name: int(rows[last][name][0]) for name in expected} == expected


documents_with_eods = st.lists(st.lists(st.integers(0, 4), max_size=20), min_size=1, max_size=9)


@settings(max_examples=60)
@given(documents_with_eods, st.integers(1, 12), st.sampled_from([0, 1]), st.booleans())
def test_documents_end_with_each_eod(
    documents: list[list[int]], seq_len: int, extra: int, drop_last: bool
) -> None:
    """From ids alone, as Megatron does it; documents may hold EODs, 0, and may lack the last."""
    masks = [[k % 3 > 0 for k in range(len(one))] for one in documents]
    if sum(map(len, documents)) < (seq_len if drop_last else 1) + extra:
        return
    given: dict[str, Any] = {"seq_len": seq_len, "num_samples": 30, "part": "valid"}
    given |= {"add_extra_token_to_sequence": extra}
    given["drop_last_partial_validation_sequence"] = drop_last
    source = jaxdata.ArrayDocuments(documents, masks)
    by = {"by": "eod", "eod_id": 0, "eod_mask_loss": True}

    def every(**more: Any) -> dict[str, np.ndarray]:
        rows = jaxdata.megatron.gpt(source, **given, **more)
        return next(jaxdata.Loader(rows, batch_size=len(rows), prefetch=0))  # type: ignore[no-any-return]

    expected = every()
    filled, slots = expected["segment_ids"], np.arange(seq_len)
    after = np.pad(expected["inputs"][:, :-1] == 0, ((0, 0), (1, 0)))
    expected["loss_mask"] &= expected["inputs"] != 0
    assert_equal(every(**by), expected)
    expected["segment_ids"] = (1 + np.cumsum(after, axis=1)) * filled
    assert_equal(every(**by, reset=True, positions="row"), expected)
    starts = np.maximum.accumulate(np.where(after, slots, 0), axis=1)
    expected["positions"] = (slots - starts) * filled
    assert_equal(every(**by, reset=True), expected)


def assert_equal(batch: dict[str, np.ndarray], expected: dict[str, np.ndarray]) -> None:
    assert {n: a.tolist() for n, a in batch.items()} == {n: a.tolist() for n, a in expected.items()}


def test_only_first_tokens_are_masked() -> None:
    masks = [[1, 0, 1], [1, 1, 1]]
    for stored in (None, masks):
        docs = FirstTokensMasked(jaxdata.ArrayDocuments([[1, 2, 0], [3, 4, 0]], stored))
        first = [0, 0, 1] if stored else [0, 1, 1]
        assert docs[0]["loss_mask"].astype(int).tolist() == first
        part = docs.masks(np.array([1, 1, 0]), np.array([1, 0, 0]), np.array([2, 1, 0]))
        assert part.views.join() == b"\1\1\0"


def slow_blend(weights: Sequence[float], size: int) -> list[tuple[int, int]]:
    counts, found = [0] * len(weights), []
    for step in range(size):
        errors = [w * max(float(step), 1.0) - c for w, c in zip(weights, counts, strict=True)]
        taken = errors.index(max(errors))
        found.append((taken, counts[taken]))
        counts[taken] += 1
    return found


@settings(max_examples=60)
@given(st.lists(st.integers(1, 10_000), min_size=1, max_size=6), st.integers(1, 900))
def test_lanes_walk_as_one(weights: list[int], size: int) -> None:
    """Lanes of 16 steps, most of them guessed from 4 before: many have to be walked again."""
    shares = normalized(weights)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(blending, "_SHORTEST_LANE", 16)
        patch.setattr(blending, "_WARM_UP", 4)
        order = blend_order(shares, size)
    places = places_in_datasets(order, len(weights))
    assert list(zip(order.tolist(), places.tolist(), strict=True)) == slow_blend(shares, size)


@settings(max_examples=60)
@given(
    st.lists(st.tuples(st.floats(0.01, 5), lengths_of_some), min_size=1, max_size=4),
    st.integers(1, 80),
    st.integers(0, 5),
)
def test_blends_are_those_of_the_slow_implementation(
    given_: list[tuple[float, list[int]]], size: int, seed: int
) -> None:
    parts = [
        distinct_documents([*lengths, 6], 1 + 1_000 * k) for k, (_, lengths) in enumerate(given_)
    ]
    sources = [jaxdata.ArrayDocuments(part) for part in parts]
    weights = np.array([weight for weight, _ in given_])
    weights = weights / np.sum(weights)
    targets = [int(np.ceil(size * w)) for w in weights]
    slow = [
        SlowGpt(part, 5, seed, int(np.ceil(t * (1 + 0.005))))
        for part, t in zip(parts, targets, strict=True)
    ]
    expected = slow_blend((weights / np.sum(weights)).tolist(), sum(targets))
    pairs = [(weight, source) for (weight, _), source in zip(given_, sources, strict=True)]
    if any(place >= slow[one].length for one, place in expected):
        with pytest.raises(InputError, match=r"the blend needs .* Megatron fails as well"):
            jaxdata.megatron.blend(pairs, size=size, seq_len=5, seed=seed)
        return
    rows = jaxdata.megatron.blend(pairs, size=size, seq_len=5, seed=seed)
    assert texts(rows) == [slow[one].text(place).tolist() for one, place in expected]


def test_blends_without_weights() -> None:
    parts = [distinct_documents([13] * n, 1 + 1_000 * n) for n in (5, 2, 9)]
    slow = [SlowGpt(part, 4, 7, None) for part in parts]
    pairs = [(None, jaxdata.ArrayDocuments(part)) for part in parts]
    rows = jaxdata.megatron.blend(pairs, size=None, seq_len=4, seed=7)
    every = [s.text(k).tolist() for s in slow for k in range(s.length)]
    assert sorted(texts(rows)) == sorted(every)
    sizes = [s.length for s in slow]
    some = jaxdata.megatron.blend(pairs, size=20, seq_len=4, seed=7)
    expected = slow_blend((np.array(sizes, float) / np.sum(sizes)).tolist(), 20)
    assert texts(some) == [slow[one].text(place).tolist() for one, place in expected]
    assert len(jaxdata.megatron.blend(pairs, size=10**6, seq_len=4)) == sum(sizes)


def blended(folder: Path, **given: Any) -> Any:
    """Of our own data, of Megatron's, and of memory."""
    if not (folder / "ours").exists():
        write_dataset(folder / "ours", {"train/web": made(1)})
        write_megatron(folder / "old", made(2), "<i4")
    ours = jaxdata.open_dataset(folder / "ours").source("train", "web")
    old = only_source(f"megatron:{folder}/old")
    datasets = [(0.5, ours), (0.3, old), (0.2, jaxdata.ArrayDocuments(made(3)))]
    return jaxdata.megatron.blend(datasets, **{"size": 100, "seq_len": 16, "seed": 3, **given})


BY_EOD: dict[str, Any] = {"reset": True, "eod_mask_loss": True, "by": "eod", "eod_id": 0}


@pytest.mark.parametrize("given", [{}, {"reset": True}, BY_EOD])
def test_a_loader_resumes_and_shares_them(tmp_path: Path, given: dict[str, Any]) -> None:
    def loader(shard: tuple[int, int] = (0, 1)) -> jaxdata.Loader:
        return jaxdata.Loader(blended(tmp_path, **given), batch_size=8, shard=shard)

    assert_resumes_everywhere(loader, tail=2)
    assert_same_on_hosts(loader, [2, 4])


@pytest.mark.slow
def test_worker_processes_make_the_same_rows(tmp_path: Path) -> None:
    rows = blended(tmp_path, **BY_EOD)
    here = jaxdata.Loader(rows, batch_size=8)
    there = jaxdata.Loader(rows, batch_size=8, num_workers=2)
    assert assert_same_batches(here, there) == len(here)
    there.close()


@pytest.mark.parametrize("given", [{"reset": True}, {"eod_mask_loss": True}, BY_EOD])
def test_devices_lay_them_out_alike(tmp_path: Path, given: dict[str, Any]) -> None:
    import jax

    rows = blended(tmp_path, **given)
    mesh = jax.make_mesh((4,), ("data",))
    sharding = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("data"))
    one, other = (
        jaxdata.Loader(rows, batch_size=8, sharding=sharding, expand=expand)
        for expand in ("host", "device")
    )
    assert assert_same_batches(one, other) == len(one)


def test_the_documents_of_slots_are_known(tmp_path: Path) -> None:
    source = jaxdata.ArrayDocuments(distinct_documents([30] * 9))
    for settings_ in ({}, {"reset": True}, {**BY_EOD, "eod_id": 17}):
        rows = jaxdata.megatron.gpt(source, seq_len=16, **settings_)
        for batch in jaxdata.Loader(rows, batch_size=4, extras=("document",)):
            filled = batch["segment_ids"] > 0
            assert ((batch["inputs"] - 1) // 30)[filled].tolist() == batch["document"][
                filled
            ].tolist()


def test_sequences_are_its_documents(tmp_path: Path) -> None:
    sequences = distinct_documents([9, 4, 12, 1, 7])
    source = only_source(write_megatron(tmp_path / "old", sequences, "<i4", [0, 2, 2, 5]))
    slow = SlowGpt(sequences, 5, 11, 20)
    rows = jaxdata.megatron.gpt(source, seq_len=5, seed=11, num_samples=20)
    assert texts(rows) == [slow.text(k).tolist() for k in range(slow.length)]


def test_a_part_of_a_split(tmp_path: Path) -> None:
    documents = distinct_documents([7] * 21)
    source = jaxdata.ArrayDocuments(documents)
    given: dict[str, Any] = {"seq_len": 5, "seed": 2, "split": "8,1,1"}
    for part, chosen in [("train", range(17)), ("valid", range(17, 19)), ("test", range(19, 21))]:
        slow = SlowGpt(documents, 5, 2, None, chosen)
        rows = jaxdata.megatron.gpt(source, **given, part=part)
        assert texts(rows) == [slow.text(k).tolist() for k in range(slow.length)]


def test_an_order_is_made_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = texts(blended(tmp_path))
    assert list((tmp_path / "ours" / "plans").glob("megatron-*.arrays"))
    assert list((tmp_path / "old.jaxdata" / "plans").glob("megatron-*.arrays"))
    monkeypatch.setattr(table, "blend_order", None)
    assert texts(blended(tmp_path)) == first


def test_a_state_of_another_order_is_refused() -> None:
    source = jaxdata.ArrayDocuments(distinct_documents([7] * 21))

    def loader(**given: Any) -> jaxdata.Loader:
        rows = jaxdata.megatron.gpt(source, seq_len=5, **{"num_samples": 20, **given})
        return jaxdata.Loader(rows, batch_size=2)

    state = loader().get_state()
    assert len(json.dumps(state)) < 600
    loader(num_samples=25).set_state(state)  # one epoch as before: the same order
    with pytest.raises(StateMismatch, match="epochs was 1, is 2"):
        loader(num_samples=40).set_state(state)
    with pytest.raises(StateMismatch, match="seed was 1234, is 1"):
        loader(seed=1).set_state(state)
    with pytest.raises(StateMismatch, match="by was absent, is 'eod'"):
        loader(by="eod", eod_id=3).set_state(state)
    with pytest.raises(StateMismatch, match="add_extra_token_to_sequence was absent, is 0"):
        loader(add_extra_token_to_sequence=0).set_state(state)


def test_states_and_kept_orders_from_before_are_found(tmp_path: Path) -> None:
    """Settings that came later are not in them."""
    source = jaxdata.ArrayDocuments(distinct_documents([7] * 21))
    rows = jaxdata.megatron.gpt(source, seq_len=5, num_samples=40, reset=True, split="8,1,1")
    assert rows.table.identity() == {
        "order": "megatron",
        "data": {"documents": "8007c5c7"},
        "seq_len": 5,
        "seed": 1234,
        "reset": True,
        "eod_mask_loss": False,
        "documents": [0, 17],
        "epochs": 2,
        "separate_last_epoch": True,
    }
    blended(tmp_path)
    manifest = tmp_path / "ours/dataset.json"
    today = manifest.read_bytes()
    shutil.rmtree(tmp_path / "ours/plans")
    edit_json(manifest, set_value("sources", "train/web", "checksums", to={}))
    for content in (manifest.read_bytes(), today):
        manifest.write_bytes(content)
        assert jaxdata.Loader(blended(tmp_path), batch_size=8).get_state()["fingerprint"] == (
            "02e43ab7bd52b053"
        )
        kept = [path.name.split(".")[0] for path in tmp_path.rglob("*.arrays")]
        assert sorted(kept) == [
            "megatron-36c60d4a11c6b85c4a705c3fff1d1805",
            "megatron-d7ba501805ced07358810650946c2442",
            "megatron-d8a985ea1a0dbc01c6b4d78408dd083e",
        ]


@pytest.mark.parametrize(
    ("datasets", "given", "expected"),
    [
        ([], {}, "0 of 0 datasets have weights"),
        ([1, None], {}, "1 of 2 datasets have weights: expected all or none"),
        ([1, 0], {}, "expected positive numbers; remove datasets"),
        ([1, 2], {"size": None}, "size=None: expected a number of samples, required with weights"),
        ([1], {"seq_len": 0}, "seq_len=0: expected at least 1"),
        ([1], {"seed": -1}, "seed=-1: expected 0 to"),
        ([1], {"by": "id"}, r"by='id': expected document \| eod"),
        ([1], {"by": "eod"}, "by='eod', eod_id=None: expected by='eod' and eod_id=, the id that"),
        ([1], {"eod_id": 0}, "by='document', eod_id=0: expected by='eod' and eod_id=, the id"),
        ([1], {"positions": "all"}, r"positions='all': expected segment \| row"),
        (
            [1],
            {"add_extra_token_to_sequence": 2},
            "add_extra_token_to_sequence=2: expected 0 or 1",
        ),
        ([1], {"part": "val"}, r"part='val': expected train \| valid \| test"),
    ],
)
def test_wrong_blends(datasets: list[Any], given: dict[str, Any], expected: str) -> None:
    source = jaxdata.ArrayDocuments(distinct_documents([7] * 21))
    with pytest.raises(InputError, match=expected):
        jaxdata.megatron.blend(
            [(weight, source) for weight in datasets], **{"size": 9, "seq_len": 4, **given}
        )
