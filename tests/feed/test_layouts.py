"""Layouts: the same loss under every name, and what other trainers' own code makes of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch.nn import functional

import jaxdata
from jaxdata.config import load, load_config
from jaxdata.errors import InputError
from jaxdata.feed.attention import varlen
from jaxdata.feed.layouts import LAYOUTS, HuggingFace, Megatron, layout
from jaxdata.testing import assert_same_batches, distinct_documents, write_dataset

VOCAB, SEQ_LEN = 64, 24
Batch = dict[str, NDArray[Any]]
random = np.random.default_rng(0)
TEXTS = [random.integers(1, VOCAB, size) for size in random.integers(1, 60, 80)]
MASKS = [random.integers(0, 2, len(text)) for text in TEXTS]
ROWS = jaxdata.pack(
    jaxdata.ArrayDocuments(TEXTS, MASKS), seq_len=SEQ_LEN, overlap=5, strategy="best_fit"
)


def batches(**settings: Any) -> list[Batch]:
    return list(jaxdata.Loader(ROWS, batch_size=4, prefetch=0, **settings))


NATIVE = batches()


class TinyModel(torch.nn.Module):
    """One block of attention; `mask` says who may look at whom."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embedding = torch.nn.Embedding(VOCAB, 16)
        self.positions = torch.nn.Embedding(SEQ_LEN, 16)
        self.mix = torch.nn.Linear(16, 48)
        self.head = torch.nn.Linear(16, VOCAB)

    def forward(self, tokens: Any, positions: Any, mask: Any) -> torch.Tensor:
        x = self.embedding(torch.tensor(tokens)) + self.positions(torch.tensor(positions))
        query, key, value = self.mix(x).chunk(3, dim=-1)
        seen = functional.scaled_dot_product_attention(query, key, value, torch.tensor(mask))
        return self.head(x + seen)


MODEL = TinyModel()


def nats(logits: torch.Tensor, targets: Any) -> torch.Tensor:
    """Of each target, those that are -100 at nought."""
    flat = torch.tensor(targets).long().flatten()
    return functional.cross_entropy(
        logits.flatten(0, 1), flat, reduction="none", ignore_index=-100
    ).reshape(logits.shape[:-1])


def weighted(each: torch.Tensor, weights: Any) -> float:
    weights = torch.tensor(weights).double()
    return float((each.detach() * weights).sum() / weights.sum())


def same_segment(ids: Any) -> Any:
    return (ids[:, :, None] == ids[:, None, :]) & np.tri(SEQ_LEN, dtype=bool)


def native_loss(batch: Batch) -> float:
    logits = MODEL(batch["inputs"], batch["positions"], same_segment(batch["segment_ids"]))
    return weighted(nats(logits, batch["targets"]), batch["loss_mask"])


def maxtext_loss(batch: Batch) -> float:
    ids = batch["inputs_segmentation"]
    logits = MODEL(batch["inputs"], batch["inputs_position"], same_segment(ids))
    return weighted(nats(logits, batch["targets"]), batch["targets_segmentation"] != 0)


def megatron_loss(batch: Batch) -> float:
    assert batch["loss_mask"].dtype == np.float32
    may_look = ~batch["attention_mask"][:, 0]
    logits = MODEL(batch["tokens"], batch["position_ids"], may_look)
    return weighted(nats(logits, batch["labels"]), batch["loss_mask"])


def megatron_loss_by_lengths(batch: Batch) -> float:
    numbers = batch["cu_seqlens"]
    assert (np.diff(numbers).max(axis=1) == batch["max_seqlen"]).all()
    ids = np.stack([np.searchsorted(row, np.arange(SEQ_LEN), side="right") for row in numbers])
    logits = MODEL(batch["tokens"], batch["position_ids"], same_segment(ids))
    return weighted(nats(logits, batch["labels"]), batch["loss_mask"])


def megatron_leaking_loss(batch: Batch) -> float:
    assert "attention_mask" not in batch
    whole = np.ones_like(batch["tokens"])
    logits = MODEL(batch["tokens"], batch["position_ids"], same_segment(whole))
    return weighted(nats(logits, batch["labels"]), batch["loss_mask"])


def hf_loss(batch: Batch) -> float:
    """By the labels that are not shifted, where every target is."""
    documents = (np.diff(batch["position_ids"], axis=1, prepend=-1) != 1).cumsum(axis=1)
    logits = MODEL(batch["input_ids"], batch["position_ids"], same_segment(documents))
    return weighted(nats(logits, batch["shift_labels"]), batch["shift_labels"] != -100)


def hf_mask_loss(batch: Batch) -> float:
    logits = MODEL(batch["input_ids"], batch["position_ids"], batch["attention_mask"][:, 0])
    return weighted(nats(logits, batch["shift_labels"]), batch["shift_labels"] != -100)


@pytest.mark.parametrize(
    ("given", "loss"),
    [
        ("jaxdata", native_loss),
        ("maxtext", maxtext_loss),
        ("hf", hf_loss),
        (HuggingFace(attention_mask=True), hf_mask_loss),
        ("megatron", megatron_loss),
        (Megatron(attention_mask=True), megatron_loss),
        (Megatron(cu_seqlens=True), megatron_loss_by_lengths),
    ],
)
def test_the_loss_is_that_of_the_native_layout(given: Any, loss: Callable[[Batch], float]) -> None:
    found = batches(layout=given)
    assert len(found) == len(NATIVE)
    for batch, native in list(zip(found, NATIVE, strict=True))[:8]:
        assert loss(batch) == pytest.approx(native_loss(native), rel=1e-6)


def test_megatrons_layout_leaks_only_where_it_is_asked_to() -> None:
    bare = batches(layout={"megatron": {"attention_mask": False}})
    leaks = [
        megatron_leaking_loss(one) != pytest.approx(native_loss(native), rel=1e-5)
        for one, native in zip(bare, NATIVE, strict=True)
    ]
    assert sum(leaks) > len(leaks) // 2


def test_labels_that_a_model_shifts_itself_lack_only_the_last_slot() -> None:
    for batch, native in zip(batches(layout="hf"), NATIVE, strict=True):
        expected = np.where(native["loss_mask"], native["targets"], -100)
        assert np.array_equal(batch["shift_labels"], expected)
        assert np.array_equal(batch["labels"][:, 1:], expected[:, :-1])
        assert (batch["labels"][:, 0] == -100).all()


def test_transformers_takes_it_as_it_is() -> None:
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=VOCAB,
        hidden_size=32,
        intermediate_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        max_position_embeddings=SEQ_LEN,
    )
    model = transformers.LlamaForCausalLM(config).eval()
    for batch, native in list(zip(batches(layout="hf"), NATIVE, strict=True))[:4]:
        given = {name: torch.tensor(array) for name, array in batch.items()}
        loss = model(**given).loss.item()
        alone = documents_alone(model, native)
        assert loss == pytest.approx(alone, rel=1e-4)
        mask = HuggingFace(attention_mask=True)(native)["attention_mask"]
        by_mask = model(**given, attention_mask=torch.tensor(mask)).loss
        assert by_mask.item() == pytest.approx(alone, rel=1e-4)


def documents_alone(model: Any, batch: Batch) -> float:
    """The loss with each segment of each row as a text of its own."""
    costs: list[float] = []
    for row in range(len(batch["inputs"])):
        for number in range(1, batch["segment_ids"][row].max() + 1):
            here = batch["segment_ids"][row] == number
            tokens = torch.tensor(batch["inputs"][row][here])[None].long()
            each = nats(model(tokens).logits, batch["targets"][row][here][None])[0]
            costs += each[torch.tensor(batch["loss_mask"][row][here])].tolist()
    return float(np.mean(costs))


def test_names_and_dtypes() -> None:
    kinds = {
        name: {key: array.dtype.name for key, array in batches(layout=name)[0].items()}
        for name in LAYOUTS
    }
    assert set(kinds["maxtext"].values()) == {"int32"}
    assert set(kinds["maxtext"]) == {
        f"{of}{what}" for of in ("inputs", "targets") for what in ("", "_position", "_segmentation")
    }
    names = ("input_ids", "labels", "shift_labels", "position_ids")
    assert kinds["hf"] == {**dict.fromkeys(names, "int64"), "use_cache": "bool"}
    assert kinds["megatron"] == {
        "attention_mask": "bool",
        "tokens": "int64",
        "labels": "int64",
        "loss_mask": "float32",
        "position_ids": "int64",
    }
    flash = HuggingFace(cu_seqlens=True)(NATIVE[0])
    assert flash["cu_seq_lens_q"].dtype == np.int32
    assert np.array_equal(flash["cu_seq_lens_q"], flash["cu_seq_lens_k"])
    assert flash["max_length_q"] == flash["max_length_k"] <= SEQ_LEN


@pytest.mark.parametrize("name", LAYOUTS)
def test_workers_and_shards_make_them_too(name: str) -> None:
    here = batches(layout=name)
    assert_same_batches(batches(layout=name, num_workers=2), here)
    halves = [batches(layout=name, shard=(part, 2)) for part in range(2)]
    joined = [
        {key: np.concatenate([a[key], b[key]]) if a[key].ndim else a[key] for key in a}
        for a, b in zip(*halves, strict=True)
    ]
    assert_same_batches(joined, here)


def test_one_of_your_own_and_what_rows_carry_besides() -> None:
    def own(batch: Batch) -> Batch:
        return {**LAYOUTS["maxtext"](batch), **varlen(batch["segment_ids"])}

    rows = ROWS.map(lambda row: {**row, "weights": row["loss_mask"] * np.float32(0.5)})
    loader = jaxdata.Loader(rows, batch_size=4, layout=own, num_workers=1)
    batch = next(loader)
    assert np.array_equal(batch["weights"], NATIVE[0]["loss_mask"] * np.float32(0.5))
    assert batch["cu_seqlens"][-1] == 4 * SEQ_LEN
    assert batch["max_seqlen"] <= SEQ_LEN
    assert "weights" in LAYOUTS["hf"](batches_of(rows)[0])


def batches_of(rows: Any) -> list[Batch]:
    return list(jaxdata.Loader(rows, batch_size=4, prefetch=0))


def test_one_row_is_laid_out_as_a_batch_is() -> None:
    for name in LAYOUTS:
        whole = layout(name)(NATIVE[0])
        row = layout(name)({key: array[1] for key, array in NATIVE[0].items()})
        of_row = {key: array[1] if array.ndim else array for key, array in whole.items()}
        assert all(np.array_equal(row[key], of_row[key]) for key in whole)


def test_a_state_does_not_know_of_layouts() -> None:
    one = jaxdata.Loader(ROWS, batch_size=4, layout="hf")
    next(one)
    other = jaxdata.Loader(ROWS, batch_size=4)
    other.set_state(one.get_state())
    assert_same_batches([next(other)], NATIVE[1:2])


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"layout": "t5"}, "layout='t5': expected one of 'jaxdata', 'maxtext', 'hf', 'megatron'"),
        ({"layout": 3}, "layout=3: expected one of"),
    ],
)
def test_an_unknown_layout_is_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError) as caught:
        batches(**settings)
    assert message in str(caught.value)


def test_what_cannot_be_said_is_refused() -> None:
    rows = jaxdata.pack(jaxdata.ArrayDocuments(TEXTS), seq_len=SEQ_LEN, positions="row")
    with pytest.raises(InputError, match="pack with positions='segment'"):
        next(jaxdata.Loader(rows, batch_size=4, layout="hf"))
    import jax

    device = jax.sharding.SingleDeviceSharding(jax.devices()[0])
    with pytest.raises(
        InputError, match=r"layout='maxtext' is made on the host, but expand='device'"
    ):
        jaxdata.Loader(ROWS, batch_size=4, sharding=device, expand="device", layout="maxtext")
    on_device = next(jaxdata.Loader(ROWS, batch_size=4, sharding=device, layout="maxtext"))
    assert_same_batches([on_device], batches(layout="maxtext")[:1])


def test_a_config_names_one(tmp_path: Any) -> None:
    dataset = write_dataset(tmp_path / "d", {"train/a": distinct_documents([30, 20, 9])})
    assert dataset.splits
    config = {"dataset": str(tmp_path / "d"), "pack": {"seq_len": 8}, "loader": {"batch_size": 1}}
    loader = load(config, loader={"layout": "megatron"})
    assert {"tokens", "labels", "loss_mask", "attention_mask"} < set(next(loader))
    with pytest.raises(InputError, match=r"loader\.layout: should be 'hf', 'jaxdata', 'maxtext'"):
        load_config(config, {"loader.layout": "t5"})
