"""What objectives make of rows, taken apart again window by window."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import given, strategies as st

import jaxdata
from jaxdata.base.errors import InputError, StateMismatch
from jaxdata.rows import objectives
from jaxdata.rows.objectives import FillInTheMiddle, MaskedTokens, NextTokens, SpanCorruption
from jaxdata.testing import assert_same_batches, assert_same_on_hosts
from tests.builders import documents, run as written

Batch = dict[str, Any]
FIM = {"prefix": 9_001, "middle": 9_002, "suffix": 9_003}
SENTINELS = list(range(9_100, 9_140))


def batch_of(seed: int, strategy: str = "best_fit", overlap: int = 0) -> Batch:
    """A few rows of documents without a token twice, and the numbers of the rows."""
    docs = jaxdata.ArrayDocuments(documents(30, longest=70, seed=seed))
    rows = jaxdata.pack(docs, seq_len=32, strategy=strategy, overlap=overlap)
    return {**next(jaxdata.Loader(rows, batch_size=12)), "row": np.arange(12)}


def windows(batch: Batch) -> Iterator[tuple[list[int], list[bool], tuple[int, slice]]]:
    """The tokens of each segment with the target of its last slot, their loss, where it is."""
    for row, ids in enumerate(batch["segment_ids"]):
        for number in range(1, ids.max() + 1):
            (slots,) = np.nonzero(ids == number)
            here = slice(slots[0], slots[-1] + 1)
            inputs, targets, mask = (
                batch[name][row, here].tolist() for name in ("inputs", "targets", "loss_mask")
            )
            assert targets[:-1] == inputs[1:]
            yield [*inputs, targets[-1]], mask, (row, here)


def pairs(before: Batch, after: Batch) -> Iterator[tuple[list[int], list[int], list[bool]]]:
    """Windows whose slots all had loss: tokens before and after, and the loss now."""
    for name in ("segment_ids", "positions"):
        assert np.array_equal(before[name], after[name])
    for (tokens, mask, _), (others, loss, _) in zip(windows(before), windows(after), strict=True):
        if all(mask):
            yield tokens, others, loss
        elif all(mask[:-1]):  # concat: the last slot of a document has no target
            yield tokens[:-1], others[:-1], loss[:-1]
        else:
            assert (tokens, mask) == (others, loss)


@given(st.integers(0, 99), st.sampled_from([("best_fit", 0), ("best_fit", 8), ("concat", 0)]))
def test_middles_are_filled_in_and_all_tokens_but_three_are_trained(seed: int, packed: Any) -> None:
    batch = batch_of(seed, *packed)
    orders = set()
    for tokens, others, loss in pairs(batch, FillInTheMiddle(**FIM, rate=1, seed=seed)(batch)):
        assert all(loss)
        if len(tokens) < 6:
            assert tokens == others
            continue
        places = [others.index(FIM[name]) for name in ("prefix", "suffix", "middle")]
        assert (places, places[0]) == (sorted(places), 0)
        parts = [others[a + 1 : b] for a, b in zip(places, [*places[1:], -1], strict=True)]
        if places[1] == 1:  # the suffix comes first, and the middle follows the prefix
            assert parts[2] + parts[1] == tokens[:-4]
        else:
            assert parts[0] + parts[2] + parts[1] == tokens[:-4]
        assert others[-1] == tokens[-1]
        orders.add(places[1] == 1)
    assert orders


@given(st.integers(0, 99), st.integers(1, 4), st.sampled_from([0.1, 0.3, 0.9]))
def test_only_spans_have_loss_behind_what_is_left(seed: int, length: int, rate: float) -> None:
    batch = batch_of(seed)
    made = SpanCorruption(sentinels=SENTINELS, rate=rate, length=length, seed=seed)(batch)
    for tokens, others, loss in pairs(batch, made):
        if len(tokens) < 9:
            assert tokens == others
            continue
        slots = len(tokens) - 1
        count = max(1, min(round(slots * rate / length), slots // 6))
        begin = others.index(SENTINELS[0], others.index(SENTINELS[0]) + 1)
        assert loss == [slot >= begin - 1 for slot in range(len(loss))]
        assert {*others} & {*SENTINELS} == {*SENTINELS[:count]}
        left, behind = others[:begin], others[begin:-1]
        for sentinel in SENTINELS[:count]:
            span = behind[behind.index(sentinel) + 1 :]
            span = span[: span.index(sentinel + 1)] if sentinel + 1 in span else span
            assert 1 <= len(span) <= length
            place = left.index(sentinel)
            left[place : place + 1] = span
        assert left == tokens[: len(tokens) - 2 * count - 1]
        assert others[-1] == tokens[-1]


def test_a_span_may_begin_at_every_place_that_has_room() -> None:
    docs = jaxdata.ArrayDocuments([[*range(1, 10)]] * 200)
    batch = next(jaxdata.Loader(jaxdata.pack(docs, seq_len=8, strategy="pad"), batch_size=200))
    made = SpanCorruption(sentinels=SENTINELS, length=2)({**batch, "row": np.arange(200)})
    assert {row.tolist().index(SENTINELS[0]) for row in made["inputs"]} == {0, 1, 2, 3, 4}


def test_settings_that_are_not_given_are_those_that_papers_take() -> None:
    check = objectives.check_objective
    fim = {"seed": 0, "rate": 0.5, "spm_rate": 0.5, **FIM}
    assert check({"fim": FIM}).facts() == {"objective": {"fim": fim}}
    span = check({"span": {"sentinels": SENTINELS}}).facts()["objective"]["span"]
    assert (span["seed"], span["rate"], span["length"]) == (0, 0.15, 3)
    mask = {"seed": 0, "rate": 0.15, "token": 9}
    assert check({"mask": {"token": 9}}).facts() == {"objective": {"mask": mask}}


@given(st.integers(0, 99))
def test_each_token_but_the_last_may_be_masked_where_it_stands(seed: int) -> None:
    batch = batch_of(seed, overlap=8)
    made = MaskedTokens(token=9_000, rate="uniform", seed=seed)(batch)
    masked = made["loss_mask"]
    assert np.array_equal(made["targets"], np.where(batch["segment_ids"] > 0, batch["inputs"], 0))
    assert np.array_equal(made["inputs"], np.where(masked, 9_000, batch["inputs"]))
    assert not (masked & ~batch["loss_mask"]).any()
    weights = made["loss_weight"]
    assert np.array_equal(weights > 0, masked)
    for _, _, (row, here) in windows(batch):
        assert len({*weights[row, here].tolist()} - {0}) <= 1


def test_rates_are_kept_and_weights_make_up_for_them() -> None:
    batch = {name: np.concatenate([batch_of(seed)[name] for seed in range(40)]) for name in BATCH}
    batch["row"] = np.arange(len(batch["row"]))
    eligible = batch["loss_mask"].sum()
    some = MaskedTokens(token=1, rate=0.15)(batch)["loss_mask"]
    assert some.sum() == pytest.approx(0.15 * eligible, rel=0.05)
    uniform = MaskedTokens(token=1, rate="uniform")(batch)
    assert uniform["loss_mask"].sum() == pytest.approx(0.5 * eligible, rel=0.05)
    assert uniform["loss_weight"].sum() == pytest.approx(eligible, rel=0.1)
    changed = FillInTheMiddle(**FIM, rate=0.4)(batch)["inputs"]
    rearranged = (changed[batch["positions"] == 0] == FIM["prefix"]).sum()
    longer = sum(len(tokens) > 5 for tokens, _, _ in windows(batch))
    assert rearranged == pytest.approx(0.4 * longer, rel=0.1)


BATCH = ("inputs", "targets", "segment_ids", "positions", "loss_mask", "row")


@given(st.integers(0, 99), st.integers(2, 5))
def test_every_slot_predicts_the_next_tokens_of_its_document(seed: int, count: int) -> None:
    batch = batch_of(seed, "concat")
    made = NextTokens(tokens=count)(batch)
    assert all(made[name] is batch[name] for name in BATCH)
    for _, mask, (row, here) in windows(batch):
        targets = batch["targets"][row, here].tolist()
        for slot in range(len(targets)):
            expected = targets[slot : slot + count], mask[slot : slot + count]
            for of, values in zip(("mtp_targets", "mtp_mask"), expected, strict=True):
                assert made[of][row, here][slot].tolist() == values + [0] * (count - len(values))
    padding = batch["segment_ids"] == 0
    assert not made["mtp_mask"][padding].any()
    assert not made["mtp_targets"][padding].any()


MASK = {"token": 9_000, "rate": "uniform"}
GIVEN = [{"mtp": 3}, {"fim": FIM}, {"span": {"sentinels": SENTINELS}}, {"mask": MASK}]
ROWS = jaxdata.pack(jaxdata.ArrayDocuments(documents(60, longest=70)), seq_len=32)


@pytest.mark.parametrize("objective", GIVEN, ids=lambda each: next(iter(each)))
def test_a_row_is_a_function_of_its_number_and_the_epoch_on_any_hosts(objective: Any) -> None:
    def make(rows: Any = ROWS, **given: Any) -> jaxdata.Loader:
        return jaxdata.Loader(rows, batch_size=8, objective=objective, reiterable=True, **given)

    assert_same_on_hosts(lambda shard: make(shard=shard), [8])
    assert_same_batches(make(), make(ROWS.map(dict)))
    loader = make()
    first, second = list(loader), list(loader)
    changed = "mtp_targets" if "mtp" in objective else "inputs"
    pairs = zip(first, second, strict=True)
    assert not any(np.array_equal(one[changed], other[changed]) for one, other in pairs)
    state = make().get_state()
    make().set_state(state)
    with pytest.raises(StateMismatch, match="objective"):
        jaxdata.Loader(ROWS, batch_size=8).set_state(state)


def test_a_config_names_tokens_by_their_text(tmp_path: Any) -> None:
    texts = {"prefix": "a", "middle": "b", "suffix": "c", "rate": 1.0}
    path = written(tmp_path, {"web": 60}, pack={"seq_len": 32})
    loader = jaxdata.load(path, loader={"batch_size": 4, "objective": {"fim": texts}})
    ids = dict(zip(("prefix", "middle", "suffix"), b"abc", strict=True))
    inner = jaxdata.Loader(loader.rows, batch_size=4, objective={"fim": {**ids, "rate": 1.0}})
    assert assert_same_batches(loader, inner)
    with pytest.raises(InputError, match="objective mask: the tokenizer has no token '<mask>'"):
        jaxdata.load(path, loader={"objective": {"mask": {"token": "<mask>"}}})


WRONG: list[Any] = [
    ({"bert": {}}, "expected one of mtp, fim, span, mask with its settings, such as"),
    ({"fim": 3}, "expected the settings of fim by name, got 3"),
    ({"mtp": 1}, "tokens=1: expected at least 2"),
    ({"fim": {"prefix": 1, "suffix": 2}}, "middle is missing: it is required"),
    ({"mask": {"token": "<m>"}}, "token='<m>' is a text, which only a config may have"),
]


@pytest.mark.parametrize(("given", "says"), WRONG)
def test_what_is_no_objective_is_refused_in_words(given: Any, says: str) -> None:
    with pytest.raises(InputError) as refused:
        jaxdata.Loader(ROWS, batch_size=4, objective=given)
    assert says in str(refused.value)


def test_documents_with_masks_of_their_own_and_pairs_are_refused() -> None:
    masked = jaxdata.ArrayDocuments([[1, 2, 3, 0]] * 9, [[0, 1, 1, 1]] * 9, name="chats")
    rows = jaxdata.pack(masked, seq_len=6)
    with pytest.raises(InputError, match="objective fim: chats has loss masks of its own"):
        jaxdata.Loader(rows, batch_size=2, objective=GIVEN[1])
    batch = next(jaxdata.Loader(rows, batch_size=2, objective={"mtp": 2}))
    assert np.array_equal(batch["mtp_mask"][..., 0], batch["loss_mask"])
    pairs = jaxdata.pairs(masked, masked, seq_len=6)
    with pytest.raises(InputError, match="objective mtp takes packed rows, and not pairs"):
        next(jaxdata.Loader(pairs, batch_size=2, objective={"mtp": 2}))
