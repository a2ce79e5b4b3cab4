"""Layouts: the same loss under every name, trainers' own code, structures of any kind."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch.nn import functional

import jaxdata
import jaxdata.torch
from jaxdata.base.errors import ConfigError, InputError
from jaxdata.config import load_config
from jaxdata.feed.layouts import LAYOUTS, HuggingFace, Megatron, layout
from jaxdata.feed.layouts import leaves, map_leaves
from jaxdata.testing import assert_same_batches
from tests.builders import run

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


def same_segment(ids: Any) -> Any:
    return (ids[:, :, None] == ids[:, None, :]) & np.tri(SEQ_LEN, dtype=bool)


@pytest.mark.slow
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


def test_one_row_is_laid_out_as_a_batch_is() -> None:
    for name in LAYOUTS:
        whole = layout(name)(NATIVE[0])
        row = layout(name)({key: array[1] for key, array in NATIVE[0].items()})
        of_row = {key: array[1] if array.ndim else array for key, array in whole.items()}
        assert all(np.array_equal(row[key], of_row[key]) for key in whole)


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    module = "def scaled(batch, *, by): return batch['inputs'] * by, batch['targets']"
    (tmp_path / "my_layouts.py").write_text(module)
    monkeypatch.syspath_prepend(tmp_path)
    return run(tmp_path, {"a": [30, 20, 9]}, pack={"seq_len": 8}, loader={"batch_size": 2})


@pytest.mark.parametrize(
    ("name", "given"),
    [
        ({"megatron": {"cu_seqlens": True}}, Megatron(cu_seqlens=True)),
        ({"hf": None}, "hf"),
        ({"my_layouts:scaled": {"by": 3}}, lambda batch: (batch["inputs"] * 3, batch["targets"])),
    ],
)
def test_a_config_names_any_layout(config: Path, name: Any, given: Any) -> None:
    made = jaxdata.load(config, **{"loader.layout": name, "loader.num_workers": 1})
    rows = jaxdata.load(config).rows
    assert_same_batches(made, jaxdata.Loader(rows, batch_size=2, layout=given))


def test_a_config_that_names_none_is_refused_before_anything_is_imported(config: Path) -> None:
    absent = {"loader.layout": "no_such_module:tokens"}
    assert load_config(config, absent), "nothing is imported to read a config"
    with pytest.raises(InputError, match="No module named 'no_such_module'"):
        jaxdata.load(config, **absent)
    config.write_text(config.read_text().replace("batch_size: 2", "layout: t5"))
    with pytest.raises(ConfigError, match="layout='t5': expected one of 'jaxdata', 'maxt"):
        load_config(config)


def test_written_rows_are_dicts_of_arrays_of_one_row(tmp_path: Path) -> None:
    rows = ROWS[:4]
    jaxdata.materialize(rows, tmp_path / "m", layout="megatron", workers=1)
    names = set(jaxdata.open_rows(tmp_path / "m")[0])
    assert names == {"tokens", "labels", "loss_mask", "position_ids"}, "no mask nobody asked for"
    with pytest.raises(InputError, match="of one row it makes tuple, expected a dict of arrays"):
        jaxdata.materialize(rows, tmp_path / "t", layout=lambda b: (b["inputs"],), workers=1)


class Example(NamedTuple):
    x: Any
    y: Any


@dataclass(frozen=True)
class Record:
    x: Any
    about: Any = None


def nested(batch: Any) -> Any:
    flags = {"causal": True, "name": "packed", "none": None, "scale": 0.5}
    inside = [Example(batch["inputs"], (batch["targets"],)), flags]
    longest = int(batch["segment_ids"].max())
    return inside, Record(batch["loss_mask"], {"longest": np.array(7), "count": longest})


def loaded(face: Any = jaxdata.Loader, **settings: Any) -> list[Any]:
    return list(face(ROWS, **{"batch_size": 4, **settings}))


@pytest.mark.slow
def test_every_way_of_delivery_keeps_the_structure() -> None:
    want = [nested(batch) for batch in loaded(prefetch=0)]
    shapes = [shape_of(batch) for batch in want]
    assert len(set(shapes)) > 1, "it changes on the way"
    device = jax.sharding.SingleDeviceSharding(jax.devices()[0])
    ways = [
        (np.ndarray, loaded(layout=nested, num_workers=1)),
        (jax.Array, loaded(layout=nested, sharding=device)),
        (torch.Tensor, loaded(jaxdata.torch.Loader, layout=nested)),
    ]
    for kind, made in ways:
        assert [shape_of(batch) for batch in made] == shapes
        assert all(isinstance(leaf, kind) for leaf in arrays_in(made[0]))
        assert_same_batches(map(arrays_in, made), map(arrays_in, want))


def test_a_batch_may_be_one_array_or_a_tuple() -> None:
    tuples = loaded(layout=lambda batch: (batch["inputs"], batch["targets"]))
    arrays = loaded(layout=lambda batch: batch["inputs"])
    assert {type(batch) for batch in tuples} == {tuple}
    assert all(np.array_equal(one[0], other) for one, other in zip(tuples, arrays, strict=True))


def test_leaves_of_a_frozen_dataclass_are_mapped_by_their_paths() -> None:
    made = map_leaves(lambda name, leaf: f"{name}={leaf}", Record(1, {"a": Example(2, [3])}))
    assert made == Record("x=1", {"a": Example("about.a.0=2", ["about.a.1.0=3"])})


def test_what_is_no_leaf_is_refused_in_words() -> None:
    def bad(batch: Any) -> Any:
        return {"inputs": batch["inputs"], "names": {1, 2}}

    with pytest.raises(InputError, match=r"the layout put a set into a batch: expected arrays and"):
        loaded(jaxdata.torch.Loader, layout=bad)


def shape_of(batch: Any) -> str:
    """The types of a structure, and the constants in it."""

    def shown(_: str, leaf: Any) -> Any:
        single = isinstance(leaf, np.ndarray | np.generic) and not leaf.ndim
        return leaf.item() if single else "array" if np.ndim(leaf) else leaf

    return repr(map_leaves(shown, batch))


def arrays_in(batch: Any) -> list[Any]:
    return [leaf for leaf in leaves(batch).values() if np.ndim(leaf)]
