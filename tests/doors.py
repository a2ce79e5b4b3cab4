"""Every public callable that takes numbers: how to call it, and what came of it, to compare.

`tests/test_numpy_arguments.py` calls each with numbers of Python and of other libraries.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

import jaxdata
import jaxdata.rows.megatron
import jaxdata.torch
from jaxdata import tokenizers
from jaxdata.testing import distinct_documents
from tests.builders import dataset
from tests.converter.here import in_this_process
from tests.dataset.trees import tree

LENGTHS = np.random.default_rng(3).integers(2, 40, 120)
DOCUMENTS = distinct_documents(LENGTHS)
WEB = jaxdata.ArrayDocuments(DOCUMENTS, name="train/web")
CODE = jaxdata.ArrayDocuments(DOCUMENTS[:50], name="train/code")
MASKS = [np.arange(length) > 0 for length in LENGTHS]
SIDES = [jaxdata.ArrayDocuments(DOCUMENTS, MASKS, name=name) for name in ("c", "r")]


class Door(NamedTuple):
    """A public callable."""

    call: Callable[..., Any]
    """calls it with the numbers of a case, and gives what came of it, in values that compare"""
    cases: list[dict[str, Any]]
    """together they name each of its arguments that is a number, a flag, or made of them"""


def write_data(folder: Path) -> None:
    """The data that the doors open."""
    dataset(folder / "d", {"a": DOCUMENTS, "b": DOCUMENTS})
    texts = ({"text": f"document {number} of {number**2} words"} for number in range(60))
    (folder / "texts.jsonl").write_text("".join(json.dumps(text) + "\n" for text in texts))
    (folder / "more.jsonl").write_text('{"text": "one more"}\n')
    np.concatenate(DOCUMENTS).astype(np.uint16).tofile(folder / "flat.bin")


def web(**packing: Any) -> Any:
    block = {} if packing.get("order") == 2 else {"block_bytes": 3200}
    return jaxdata.pack(WEB, **{"seq_len": 16, **block, **packing})


def mixed(**recipe: Any) -> Any:
    rows = {"web": web(), "code": jaxdata.pack(CODE, seq_len=16)}
    return jaxdata.mix(rows, **(recipe or {"weights": {"web": 1, "code": 2}}))


def delivered(loader: Any) -> Any:
    """Three batches of a loader, and the state it saves."""
    batches = [digest(next(loader)) for _ in range(3)]
    loader.close()
    return batches, json.dumps(loader.get_state())


def run_of(rows: Any) -> Any:
    return len(rows), delivered(jaxdata.Loader(rows, batch_size=4, prefetch=0))


def digest(batch: Any) -> str:
    content = hashlib.sha256()
    for name, array in sorted((name, np.asarray(array)) for name, array in batch.items()):
        content.update(f"{name}{array.dtype}{array.shape}".encode() + array.tobytes())
    return content.hexdigest()


def files(folder: Path) -> Any:
    """The content of all files, but the names of those that say how long it took."""
    timed = ("dataset.json", "report.json")
    return {
        name: None if name.endswith(timed) else content for name, content in tree(folder).items()
    }


def _rows(data: Path) -> dict[str, Door]:
    packing = {"seq_len": 24, "overlap": 5, "max_segments": 3}
    megatron = {
        **{"seq_len": 16, "seed": 3, "reset": True, "eod_mask_loss": True},
        **{"by": "eod", "eod_id": 5, "add_extra_token_to_sequence": 0},
        "drop_last_partial_validation_sequence": True,
    }

    def phase(**budget: Any) -> Any:
        return run_of(mixed(phases=[jaxdata.Phase(**budget)]))

    def evaluated(**numbers: Any) -> Any:
        dataset = jaxdata.open_dataset(data / "d")
        return run_of(jaxdata.evaluation_rows(dataset, "train", **numbers))

    def blended(datasets: Any, **settings: Any) -> Any:
        named = list(zip(datasets, (WEB, CODE), strict=True))
        return run_of(jaxdata.rows.megatron.blend(named, **settings))

    weights = {"web": 0.7, "code": 3}
    budgets = [{"tokens": 400.5}, {"rows": 17}, {"steps": 5, "batch_size": 4}]
    return {
        "pack": Door(
            lambda **numbers: run_of(web(**numbers)),
            [
                {**packing, "seed": 3, "block_bytes": 1600, "lanes": 2, "multiple": 2},
                {"seq_len": 16, "chunk_bytes": 64, "block_bytes": 256, "lanes": 4},
            ],
        ),
        "mix": Door(
            lambda **numbers: run_of(mixed(**numbers)),
            [{"weights": {"web": 0.3, "code": 2}, "epochs": {"web": 2, "code": 1.5}}],
        ),
        "Phase": Door(phase, [{"weights": weights, **budget} for budget in budgets]),
        "evaluation_rows": Door(evaluated, [{**packing, "eval_tokens": 300.5, "multiple": 2}]),
        "pairs": Door(
            lambda **numbers: run_of(jaxdata.pairs(*SIDES, **numbers)),
            [{"seq_len": 24, "max_prompt": 4, "seed": 3, "shuffle": False}],
        ),
        "megatron.gpt": Door(
            lambda **numbers: run_of(jaxdata.rows.megatron.gpt(WEB, **numbers)),
            [{**megatron, "num_samples": 400, "pad_id": 7}],
        ),
        "megatron.blend": Door(
            blended,
            [
                {
                    **megatron,
                    **{"datasets": [0.5, 2.25], "size": 40, "pad_id": 7},
                    "mid_level_dataset_surplus": 0.25,
                }
            ],
        ),
    }


def _members(data: Path) -> dict[str, Door]:
    def loader(**settings: Any) -> Any:
        return jaxdata.Loader(mixed(), batch_size=4, prefetch=0, **settings)

    def moved(method: str) -> Callable[..., Any]:
        def move(**where: Any) -> Any:
            skipping = loader(skip_rows=[(20, 24)])
            getattr(skipping, method)(**where)
            return delivered(skipping)

        return move

    def summed(**numbers: Any) -> Any:
        batch = next(loader(extras=["source"]))
        found = jaxdata.losses_by_source(batch, batch["loss_mask"] * 0.5, **numbers)
        return [each.tolist() for each in found]

    repeated = [{"num_epochs": 3, "reseed_each_epoch": reseed} for reseed in (True, False)]
    return {
        "losses_by_source": Door(summed, [{"sources": 2}]),
        "Loader.batch_rows": Door(
            lambda **numbers: loader().batch_rows(**numbers).tolist(), [{"step": 2}]
        ),
        "Loader.step_of_row": Door(
            lambda **numbers: json.dumps(loader().step_of_row(**numbers)), [{"row": 7}]
        ),
        "Loader.reweigh": Door(moved("reweigh"), [{"weights": {"web": 0.25, "code": 3}}]),
        "Loader.seek": Door(moved("seek"), [{"step": 4}, {"row": 9}]),
        "Loader.skip": Door(moved("skip"), [{"first": 2, "stop": 9}]),
        "PackedDataset.repeat": Door(lambda **numbers: run_of(web().repeat(**numbers)), repeated),
        "PairDataset.repeat": Door(
            lambda **numbers: run_of(jaxdata.pairs(*SIDES, seq_len=16).repeat(**numbers)), repeated
        ),
        "MixedDataset.amend": Door(
            lambda **numbers: run_of(mixed().amend(**numbers)),
            [{"row": 3, "epochs": {"web": 1.25, "code": 2}, "weights": {"web": 0.25, "code": 3}}],
        ),
        "MixedDataset.counts": Door(
            lambda **numbers: json.dumps(mixed().counts(**numbers)), [{"rows": 11}]
        ),
        "MixedDataset.epochs": Door(
            lambda **numbers: json.dumps(mixed().epochs(**numbers)), [{"rows": 11}]
        ),
        "Dataset.source": Door(
            lambda **numbers: jaxdata.open_dataset(data / "d").source("train", "a", **numbers).name,
            [{"generation": 0}],
        ),
    }


def _loaders(data: Path) -> dict[str, Door]:
    config = {"dataset": str(data / "d"), "pack": {"seq_len": 16}, "loader": {"batch_size": 4}}
    ranks = {"rank": 1, "world_size": 2, "long": True}
    sizes = {"batch_size": [(0, 4), (8, 2)]}
    batches = {"prefetch": 1, "drop_remainder": True, "skip_rows": [(2, 4), (9, 12)]}

    def by_number(**numbers: Any) -> Any:
        found = jaxdata.torch.Batches(mixed(), **numbers)
        return digest(found[1]), json.dumps(found.get_state(2))

    return {
        "Loader": Door(
            lambda **numbers: delivered(jaxdata.Loader(mixed(), **numbers)),
            [
                {**sizes, **batches, "num_workers": 0, "shard": (1, 2)},
                {"batch_size": 6, "reiterable": True},
                {
                    "batch_size": 8,
                    "balance": {"attention": 9},
                    "microbatches": 2,
                    "context_parallel": 2,
                },
            ],
        ),
        "load": Door(
            lambda **numbers: delivered(jaxdata.load(config, **numbers)), [{"shard": (1, 2)}]
        ),
        "torch.Loader": Door(
            lambda **numbers: delivered(jaxdata.torch.Loader(mixed(), **numbers)),
            [{**sizes, **ranks}],
        ),
        "torch.load": Door(
            lambda **numbers: delivered(jaxdata.torch.load(config, **numbers)), [ranks]
        ),
        "torch.Batches": Door(by_number, [{**sizes, **ranks, "start_row": 9}]),
        "torch.Batches.get_state": Door(
            lambda **numbers: json.dumps(
                jaxdata.torch.Batches(mixed(), batch_size=4).get_state(**numbers)
            ),
            [{"batches": 3}],
        ),
    }


def _files(data: Path, folder: Path) -> dict[str, Door]:
    fresh = (folder / str(number) for number in itertools.count())

    def materialized(**numbers: Any) -> Any:
        output = next(fresh)
        jaxdata.materialize(web(), output, **numbers)
        return files(output)

    def converted(append: Any, **numbers: Any) -> Any:
        output = next(fresh)
        made: Any = {"output": output, "source": "s", "tokenizer": "bytes"}
        with in_this_process():
            jaxdata.convert(data / "texts.jsonl", **made, **numbers)
            jaxdata.convert(data / "more.jsonl", **made, append=append, **numbers)
        return files(output)

    def deduplicated(**numbers: Any) -> Any:
        report = jaxdata.deduplicate(data / "d", "found", of="ids", **numbers)
        return json.dumps({source: view.fingerprint for source, view in report.views.items()})

    def exported(**numbers: Any) -> Any:
        documents = jaxdata.ArrayDocuments([[5, 6, 9], [7, 9]])
        output = next(fresh)
        jaxdata.export(documents, output, format="nanogpt", **numbers)
        return output.read_bytes()

    def foreign(**numbers: Any) -> Any:
        dataset = jaxdata.open_dataset(f"nanogpt:{data / 'flat.bin'}", **numbers)
        return run_of(jaxdata.pack(dataset.source("train", "flat.bin"), seq_len=16))

    def streamed(**numbers: Any) -> Any:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)
            return delivered(
                jaxdata.stream_text(data / "texts.jsonl", tokenizer="bytes", **numbers)
            )

    def selected(**numbers: Any) -> Any:
        made = jaxdata.select(data / "d", "numbers", weight="tokens / 7", **numbers)
        return [(entry.fingerprint, entry.parameters) for entry in made.values()]

    streams = {"batch_size": 2, "seq_len": 24, "overlap": 3, "seed": 3, "buffer": 7, "epochs": 2}
    ahead = {"shuffle": True, "shard": (1, 2), "num_workers": 0, "prefetch": 0}
    some = {"first_row": 2, "stop_row": 20, "skip_rows": [(3, 5)], "shard_rows": 4, "workers": 1}
    return {
        "materialize": Door(materialized, [some]),
        "convert": Door(
            converted,
            [
                {"workers": 1, "append": True, "resume": False, "max_expansion": 50}
                | {"verify_inputs": True, "template_text_ok": True, "minhash": True}
            ],
        ),
        "deduplicate": Door(
            deduplicated,
            [
                {"workers": 1, "memory": 2**20, "unit_tokens": 10**6}
                | {"ngram": 2, "bands": 4, "rows": 2, "threshold": 0.25, "near": True}
            ],
        ),
        "export": Door(exported, [{"eod_id": 9}]),
        "open_dataset": Door(foreign, [{"eod_id": 40}]),
        "select": Door(selected, [{"seed": 3}]),
        "stream_text": Door(streamed, [{**streams, **ahead}]),
    }


def _tokenizers(folder: Path) -> dict[str, Door]:
    def trained(**numbers: Any) -> Any:
        words = (f"{number} {'word ' * (number % 9)}" for number in range(4000))
        tokenizers.train(words, folder / "model", **numbers)
        return (folder / "model").read_bytes()

    def trained_on_bytes(**numbers: Any) -> Any:
        words = (f"{number} {'word ' * (number % 9)}" for number in range(4000))
        tokenizers.train_byte_level(words, folder / "bytes", **numbers)
        return (folder / "bytes/tokenizer.json").read_bytes()

    def restored(**numbers: Any) -> Any:
        found = tokenizers.restore("bytes", {}, name="bytes", **numbers)
        return json.dumps([found.eod_id, found.bos_id, found.pad_id])

    limits = {"digits": 2, "max_bytes": 40_000, "character_coverage": 0.99}
    return {
        "tokenizers.train": Door(trained, [{"vocab_size": 310, "pad_id": 5, **limits}]),
        "tokenizers.train_byte_level": Door(
            trained_on_bytes,
            [{"vocab_size": 300, "pad_id": 5, "digits": 2, "max_bytes": 40_000}],
        ),
        "tokenizers.restore": Door(restored, [{"eod_id": 256, "bos_id": 3, "pad_id": 4}]),
    }


def doors(data: Path, folder: Path) -> dict[str, Door]:
    """All of them, by name; `data` is where `write_data` wrote, `folder` is for what they write."""
    return {
        **_rows(data),
        **_members(data),
        **_loaders(data),
        **_files(data, folder),
        **_tokenizers(folder),
    }
