"""Megatron's rows and blends: those of a slow implementation that walks, token by token."""

import math
import pickle
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

import jaxdata
from jaxdata.base.errors import InputError
from jaxdata.rows.megatron import order as blending
from jaxdata.rows.megatron.order import blend_order, normalized, places_in_datasets
from jaxdata.testing import distinct_documents, write_dataset
from tests.dataset.documents.test_foreign import made, only_source, write_megatron

BY_EOD: dict[str, Any] = {"reset": True, "eod_mask_loss": True, "by": "eod", "eod_id": 0}


class SlowGpt:
    """Megatron's GPT dataset as its documentation of indices says it, one token after the other."""

    def __init__(
        self, documents: Sequence[np.ndarray], seq_len: int, seed: int, num_samples: int | None,
        chosen: Sequence[int] | None = None, extra: int = 1, drop_last: bool = True,
    ) -> None:  # fmt: skip
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


SEEDS, COUNTS = st.integers(0, 2**32 - 1), st.none() | st.integers(0, 60)
lengths_of_some = st.lists(st.integers(0, 20), min_size=1, max_size=15).filter(sum)


def slow_blend(weights: Sequence[float], size: int) -> list[tuple[int, int]]:
    counts, found = [0] * len(weights), []
    for step in range(size):
        errors = [w * max(float(step), 1.0) - c for w, c in zip(weights, counts, strict=True)]
        taken = errors.index(max(errors))
        found.append((taken, counts[taken]))
        counts[taken] += 1
    return found


@settings(max_examples=100)
@given(lengths_of_some, st.integers(1, 12), SEEDS, COUNTS, st.sampled_from([0, 1]), st.booleans())
def test_rows_are_those_of_the_slow_implementation(
    lengths: list[int], seq_len: int, seed: int, num_samples: int | None, extra: int, whole: bool
) -> None:
    """Also of validation data whose rest is a row too, and of samples without another token."""
    documents = distinct_documents(lengths)
    given: dict[str, Any] = {"seq_len": seq_len, "seed": seed, "num_samples": num_samples}
    given |= {"add_extra_token_to_sequence": extra, "part": "valid", "reset": bool(seed % 2)}
    given["drop_last_partial_validation_sequence"] = whole
    given["eod_mask_loss"] = masked = bool(seed % 3)
    firsts = {int(document[0]) for document in documents if masked and len(document)}
    source, least = jaxdata.ArrayDocuments(documents), (seq_len if whole else 1) + extra
    if sum(lengths) < least:
        with pytest.raises(InputError, match=f"a row of seq_len={seq_len} needs {least}"):
            jaxdata.rows.megatron.gpt(source, **given)
        return
    rows = jaxdata.rows.megatron.gpt(source, **given)
    slow = SlowGpt(documents, seq_len, seed, num_samples, extra=extra, drop_last=whole)
    assert len(rows) == slow.length
    for number in range(slow.length):
        row, text = rows[number], slow.text(number).tolist()
        filled = min(len(text), seq_len)
        assert row["inputs"].tolist() == [*text, *[0] * seq_len][:seq_len]
        targets = [*text[1:], *[0] * seq_len][:seq_len]
        assert row["targets"].tolist() == targets
        trained = [bool(target) and target not in firsts for target in targets]
        assert row["loss_mask"].tolist() == trained
        assert (row["segment_ids"] > 0).tolist() == [k < filled for k in range(seq_len)]


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
        rows = jaxdata.rows.megatron.gpt(source, **given, **more)
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


def test_sequences_of_files_are_its_documents_also_in_a_part_of_a_split(tmp_path: Path) -> None:
    sequences = distinct_documents([9, 4, 12, 1, 7, 30, 2, 20])
    source = only_source(write_megatron(tmp_path / "old", sequences, "<i4", [0, 2, 2, 5, 8]))
    for part, chosen in (("train", range(6)), ("test", range(7, 8))):
        slow = SlowGpt(sequences, 5, 11, None, chosen)
        rows = jaxdata.rows.megatron.gpt(source, seq_len=5, seed=11, split="6,1,1", part=part)
        assert texts(rows) == [slow.text(k).tolist() for k in range(slow.length)]


@pytest.mark.parametrize("options", [{}, {"reset": True, "eod_mask_loss": True}, BY_EOD])
def test_pads_have_no_loss_and_are_0(options: dict[str, Any]) -> None:
    """Also those that a row's last target is; EODs of id 0 are found before."""
    random = np.random.default_rng(5)
    documents = [np.append(random.integers(0, 4, 20), 0).astype(np.uint16) for _ in range(30)]
    source = jaxdata.ArrayDocuments(documents)
    plain = jaxdata.rows.megatron.gpt(source, seq_len=8, **options)
    rows = jaxdata.rows.megatron.gpt(source, seq_len=8, pad_id=3, **options)
    seen = 0
    for one, other in zip(plain, pickle.loads(pickle.dumps(rows)), strict=True):
        for name in ("inputs", "targets"):
            assert (other[name] == np.where(one[name] == 3, 0, one[name])).all()
        assert (other["loss_mask"] == one["loss_mask"] & (one["targets"] != 3)).all()
        assert (other["segment_ids"] == one["segment_ids"]).all()
        seen += int((one["targets"] == 3).sum())
    assert seen > 50


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


PARTS = st.lists(st.tuples(st.floats(0.01, 5), lengths_of_some), min_size=1, max_size=4)


@pytest.mark.parametrize(("sizes", "datasets"), [([3, 1, 2], "021020"), ([5, 2], "0100100")])
def test_a_source_that_is_used_up_is_skipped(sizes: list[int], datasets: str) -> None:
    assert "".join(map(str, blend_order(normalized(sizes), sum(sizes), sizes))) == datasets


@settings(max_examples=60)
@given(PARTS, st.integers(1, 80), st.integers(0, 5), st.sampled_from([0.005, 0.0, 0.5, 3]))
def test_blends_are_those_of_the_slow_implementation(
    given_: list[tuple[float, list[int]]], size: int, seed: int, surplus: float
) -> None:
    parts = [distinct_documents([*each, 6], 1 + 1_000 * k) for k, (_, each) in enumerate(given_)]
    sources = [jaxdata.ArrayDocuments(part) for part in parts]
    weights = np.array([weight for weight, _ in given_])
    weights = weights / np.sum(weights)
    targets = [int(np.ceil(size * w)) for w in weights]
    samples = [int(np.ceil(t * (1 + surplus))) for t in targets]
    slow = [SlowGpt(part, 5, seed, n) for part, n in zip(parts, samples, strict=True)]
    expected = slow_blend((weights / np.sum(weights)).tolist(), sum(targets))
    pairs = [(weight, source) for (weight, _), source in zip(given_, sources, strict=True)]
    given: dict[str, Any] = {"size": size, "seq_len": 5, "seed": seed}
    given |= {} if surplus == 0.005 else {"mid_level_dataset_surplus": surplus}
    if any(place >= slow[one].length for one, place in expected):
        says = r"the blend needs .* Megatron fails as well: raise mid_level_dataset_surplus"
        with pytest.raises(InputError, match=says):
            jaxdata.rows.megatron.blend(pairs, **given)
        return
    rows = jaxdata.rows.megatron.blend(pairs, **given)
    assert texts(rows) == [slow[one].text(place).tolist() for one, place in expected]


def test_blends_without_weights() -> None:
    parts = [distinct_documents([13] * n, 1 + 1_000 * n) for n in (5, 2, 9)]
    slow = [SlowGpt(part, 4, 7, None) for part in parts]
    pairs = [(None, jaxdata.ArrayDocuments(part)) for part in parts]
    rows = jaxdata.rows.megatron.blend(pairs, size=None, seq_len=4, seed=7)
    every = [s.text(k).tolist() for s in slow for k in range(s.length)]
    assert sorted(texts(rows)) == sorted(every)
    sizes = [s.length for s in slow]
    some = jaxdata.rows.megatron.blend(pairs, size=20, seq_len=4, seed=7)
    expected = slow_blend((np.array(sizes, float) / np.sum(sizes)).tolist(), 20)
    assert texts(some) == [slow[one].text(place).tolist() for one, place in expected]
    assert len(jaxdata.rows.megatron.blend(pairs, size=10**6, seq_len=4)) == sum(sizes)


WRONG: list[Any] = [
    ([], {}, "0 of 0 datasets have weights"),
    ([1, None], {}, "1 of 2 datasets have weights: expected all or none"),
    ([1, 0], {}, "expected positive numbers; remove datasets"),
    ([1, 2], {"size": None}, "size=None: expected a number of samples, required with weights"),
    ([1], {"by": "eod"}, "by='eod', eod_id=None: expected by='eod' and eod_id=, the id that"),
    ([1], {"mid_level_dataset_surplus": np.nan}, "surplus=nan: expected a number of at least"),
    ([1], {"pad_id": -1}, "pad_id=-1: expected an id, tokenizer.pad of Megatron; where that"),
    ([1], {"part": "val"}, r"part='val': expected train \| valid \| test"),
    ([1], {"split": "none"}, "split='none': expected one to three weights, like '969,30,1'"),
]


@pytest.mark.parametrize(("datasets", "given", "expected"), WRONG)
def test_wrong_blends(datasets: list[Any], given: dict[str, Any], expected: str) -> None:
    source = jaxdata.ArrayDocuments(distinct_documents([7] * 21))
    with pytest.raises(InputError, match=expected):
        jaxdata.rows.megatron.blend(
            [(weight, source) for weight in datasets], **{"size": 9, "seq_len": 4, **given}
        )


def blended(folder: Path, **given: Any) -> Any:
    """Of our own data, of Megatron's, and of memory."""
    if not (folder / "ours").exists():
        write_dataset(folder / "ours", {"train/web": made(1)})
        write_megatron(folder / "old", made(2), "<i4")
    ours = jaxdata.open_dataset(folder / "ours").source("train", "web")
    old = only_source(f"megatron:{folder}/old")
    datasets = [(0.5, ours), (0.3, old), (0.2, jaxdata.ArrayDocuments(made(3)))]
    return jaxdata.rows.megatron.blend(datasets, **{"size": 100, "seq_len": 16, "seed": 3, **given})


def test_an_order_is_made_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = texts(blended(tmp_path))
    assert list((tmp_path / "ours" / "plans").glob("megatron-*.arrays"))
    assert list((tmp_path / "old.jaxdata" / "plans").glob("megatron-*.arrays"))
    monkeypatch.setattr(blending, "blend_order", None)
    assert texts(blended(tmp_path)) == first


def test_the_documents_of_slots_are_known() -> None:
    source = jaxdata.ArrayDocuments(distinct_documents([30] * 9))
    for settings_ in ({}, {"reset": True}, {**BY_EOD, "eod_id": 17}):
        rows = jaxdata.rows.megatron.gpt(source, seq_len=16, **settings_)
        for batch in jaxdata.Loader(rows, batch_size=4, extras=("document",)):
            filled = batch["segment_ids"] > 0
            assert (((batch["inputs"] - 1) // 30) == batch["document"])[filled].all()


def test_states_and_kept_orders_stay_the_same(tmp_path: Path) -> None:
    """Settings that came later are not in them."""
    source = jaxdata.ArrayDocuments(distinct_documents([7] * 21))
    rows = jaxdata.rows.megatron.gpt(source, seq_len=5, num_samples=40, reset=True, split="8,1,1")
    order = {"order": "megatron", "documents": [0, 17], "epochs": 2, "separate_last_epoch": True}
    given = {"seq_len": 5, "seed": 1234, "reset": True, "eod_mask_loss": False}
    assert rows.table.identity() == order | given | {"data": {"documents": "8007c5c7"}}
    state = jaxdata.Loader(blended(tmp_path), batch_size=8).get_state()
    assert state["fingerprint"] == "02e43ab7bd52b053"
    assert sorted(path.name.split(".")[0] for path in tmp_path.rglob("*.arrays")) == [
        "megatron-08520e7618cc2314d686faf40c3ee767",
        "megatron-442ab5b6976611d957b8989251c100a6",
        "megatron-d7ba501805ced07358810650946c2442",
    ]
