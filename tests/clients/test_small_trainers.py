"""nanodo, nanoGPT, nanochat: rows by hand, resumed to the bit; what is quickly seen of others.

In stand-ins of what those trainers call. `README.md` of the room says when the first three were run
in themselves; the others train in `installed/`.
"""

import json
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import islice
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import torch

import jaxdata
import jaxdata.torch
from jaxdata.base.errors import InputError, StateMismatch
from jaxdata.clients import levanter, lightning, megatron, nanochat, nanodo, torchtitan, tunix
from jaxdata.clients.nanogpt import Data
from jaxdata.config import build_rows, load_config
from tests import builders
from tests.clients import tiny
from tests.clients.tiny import ROWS, SEQ_LEN, VOCAB, Tiny, assert_by_hand, mean_by_hand, tensor
from tests.readmes import of

CHAT = SimpleNamespace(get_vocab_size=lambda: VOCAB)


@pytest.fixture
def alone(run: dict[str, Any]) -> dict[str, Any]:
    """A config with a document in each row."""
    return {**run, "pack": {"seq_len": SEQ_LEN, "strategy": "pad"}}


def logits_of(model: Tiny, tokens: torch.Tensor) -> Any:
    seen = torch.ones(tokens.shape[1], tokens.shape[1], dtype=torch.bool).tril()
    return model(tokens, torch.arange(tokens.shape[1]), seen)


def chat(model: Tiny, tokens: Any, targets: Any, loss_reduction: str) -> Any:
    """As nanochat's `GPT.forward`."""
    flat = logits_of(model, tokens).flatten(0, 1), targets.flatten()
    return torch.nn.functional.cross_entropy(*flat, ignore_index=-1, reduction=loss_reduction)


class NanoGPT(Data):
    """Its loop: the next batch is there before a step ends, and before a checkpoint."""

    def __init__(self, run: Any, rows: int = ROWS) -> None:
        super().__init__(run, batch_size=rows, block_size=SEQ_LEN)

    def loss_of(self, model: Tiny, pair: Any) -> Any:
        return self.loss(logits_of(model, pair[0]), pair[1])

    def __iter__(self) -> Iterator[Any]:
        batch = self.get_batch("train")
        while True:
            now, batch = batch, self.get_batch("train")
            yield now


class NanoChat:
    """Its loop, with its generator of batches and states."""

    def __init__(self, run: Any, rows: int = ROWS) -> None:
        self.run, self.rows, self.state, self.resumed = run, rows, None, None

    def resume(self, state: Any) -> None:
        self.resumed = state

    def loss_of(self, model: Tiny, pair: Any) -> Any:
        return nanochat.loss(partial(chat, model), *pair)

    def __iter__(self) -> Iterator[Any]:
        function = nanochat.with_state(self.run)
        given = {"split": "train", "device": "cpu", "resume_state_dict": self.resumed}
        batches = function(CHAT, self.rows, SEQ_LEN, **given)
        *batch, self.state = next(batches)
        printed = [self.state[name] for name in ("epoch", "pq_idx", "rg_idx")]
        assert printed == [1, None, 0 if self.resumed is None else 3 * ROWS]
        while True:
            now = batch
            *batch, self.state = next(batches)
            yield now


@pytest.mark.parametrize("script", [NanoGPT, NanoChat])
def test_scripts_by_hand_and_resumed_to_the_bit(alone: Any, script: Any) -> None:
    def loss_of(model: Tiny, pair: Any) -> Any:
        """The mean by hand; the client's is over slots, of which micro-batches have as many."""
        return whole_run.loss_of(model, pair) * pair[1].numel() / (pair[1] >= 0).sum()

    whole_run = script(alone)
    whole = assert_by_hand(Tiny(), whole_run, loss_of, jaxdata.load(alone))
    model, first, again = Tiny(), script(alone), script(alone)
    losses = list(tiny.train(model, first, loss_of, 3))
    again.resume(json.loads(json.dumps(first.state)))
    assert losses + list(tiny.train(model, again, loss_of, 3)) == whole


@pytest.mark.parametrize("script", [NanoGPT, NanoChat])
def test_a_target_weighs_the_same_in_any_micro_batch(alone: Any, script: Any) -> None:
    """The gradient of four micro-batches, as their scripts average them, is that of the batch."""

    def gradient(pairs: Any, count: int, loss_of: Any) -> torch.Tensor:
        model.zero_grad()
        for pair in islice(pairs, count):
            (loss_of(model, pair) / count).backward()
        found = [weight.grad for weight in model.parameters()]
        return torch.cat([grad.flatten() for grad in found if grad is not None])

    model, small, large = Tiny(), script(alone, ROWS // 4), script(alone)
    whole = gradient(large, 1, large.loss_of)
    assert torch.allclose(gradient(small, 4, small.loss_of), whole, rtol=1e-9)
    tokens, targets = next(iter(script(alone)))
    nothing = torch.full_like(targets, -1)
    assert small.loss_of(model, (tokens, nothing)) == 0  # a process may have filling rows only


@pytest.mark.parametrize("script", [NanoGPT, NanoChat])
def test_a_loss_of_their_own_and_the_end_are_said(alone: Any, script: Any) -> None:
    pairs = iter(script(alone))
    next(pairs)
    with pytest.raises(InputError, match=r"own loss is the mean .* let its script say loss = "):
        next(pairs)
    short = script({**alone, "curriculum": [{"rows": 20, "mix": {"pages": 1}}]})
    with pytest.raises(InputError, match="end after step 3: give its sources more epochs"):
        [short.loss_of(Tiny(), pair) for pair in short]


def test_what_nanogpt_estimates_on_is_still_trained_on(alone: Any) -> None:
    """Its `estimate_loss` asks for batches of "train" too, in one process only."""
    data = Data(alone, batch_size=ROWS, block_size=SEQ_LEN)
    data.get_batch("train")
    state = data.state
    with torch.no_grad():
        estimated = [data.get_batch("train")[0] for _ in range(4)]
    assert data.state == state
    expected = [torch.from_numpy(batch["inputs"]) for batch in islice(jaxdata.load(alone), 4)]
    assert torch.equal(torch.stack(estimated), torch.stack(expected))
    assert torch.equal(data.get_batch("train")[0], expected[1])


def test_evaluation_begins_again(alone: Any) -> None:
    data = Data(alone, batch_size=4, block_size=SEQ_LEN)
    batches = nanochat.without_state(alone)(CHAT, 4, SEQ_LEN, split="val", device="cpu")
    for evaluated in ([data.get_batch("val") for _ in range(10)], list(islice(batches, 10))):
        tokens = [pair[0].tolist() for pair in evaluated]
        assert tokens[:5] == tokens[5:]
        assert [0] * SEQ_LEN not in tokens[0]


def test_what_scripts_refuse(run: Any, alone: Any) -> None:
    given = {"batch_size": ROWS, "block_size": SEQ_LEN}
    with pytest.raises(InputError, match="pack with strategy='pad', or give across_documents=True"):
        [Data(run, **given).get_batch("train") for _ in range(6)]
    assert Data(run, **given, across_documents=True).get_batch("train")[0].shape == (ROWS, SEQ_LEN)
    with pytest.raises(InputError, match=r"nanoGPT's sequence length is 64: set pack"):
        Data(alone, batch_size=ROWS, block_size=64)
    chat = partial(nanochat.with_state(alone), B=ROWS, T=SEQ_LEN, split="train", device="cpu")
    with pytest.raises(InputError, match="ids below 1,000, but nanochat's vocabulary is 512"):
        next(chat(SimpleNamespace(get_vocab_size=lambda: 512)))
    with pytest.raises(StateMismatch, match="it lacks 'fingerprint', it lacks 'version'"):
        next(chat(CHAT, resume_state_dict={"pq_idx": 1, "rg_idx": 2, "epoch": 1}))


def test_nanodo(alone: Any, stand_in: Callable[..., Any]) -> None:
    """Its loss takes what `get_in_out` makes of a batch; its checkpoints take grain's iterators."""
    data = stand_in("nanodo.data")
    nanodo.install(alone)

    def loss_of(model: Tiny, batch: Any) -> torch.Tensor:
        tokens, targets, counts = map(tensor, data.get_in_out(batch))
        whole = torch.ones_like(tokens)
        costs = model.costs(tokens, targets, whole.cumsum(-1) - 1, whole)
        return (costs * counts).sum() / counts.sum()

    given = {"batch_size": ROWS, "context_size": SEQ_LEN, "tfds_name": "lm1b"}
    loader = iter(data.py_batched_tfds(split="train", **given))
    whole = assert_by_hand(Tiny(), loader, loss_of, jaxdata.load(alone))
    model, first, again = Tiny(), *(data.py_batched_tfds(split="train", **given) for _ in "ab")
    losses = list(tiny.train(model, first, loss_of, 3))
    again.set_state(first.get_state())
    assert losses + list(tiny.train(model, again, loss_of, 3)) == whole

    evaluation = data.py_batched_tfds(split="test", **given)
    passes = [[batch.tolist() for batch in islice(evaluation, 2)] for _ in range(2)]
    assert passes[0] == passes[1]
    with pytest.raises(InputError, match="nanodo's context_size is 64"):
        data.py_batched_tfds(split="train", batch_size=ROWS, context_size=64)


class PeftTrainer:
    """What Tunix's has that the client uses."""

    with_gen_model_input_fn = with_loss_fn = with_data_hooks = lambda self, _: None

    def __init__(self, metadata: Any = None, steps: int = 0) -> None:
        self.model = SimpleNamespace(config=SimpleNamespace(vocab_size=VOCAB))
        self.config = SimpleNamespace(gradient_accumulation_steps=None)
        self.iter_steps = self.train_steps = steps
        self._restored_custom_metadata = metadata
        self.logged: list[tuple[Any, ...]] = []
        self.metrics_logger = SimpleNamespace(log=lambda *each: self.logged.append(each))
        self.metrics_prefix = "p"

    def custom_checkpoint_metadata(self) -> dict[str, Any]:
        return {"global_step": self.train_steps}


def test_tunix_goes_on_after_what_was_trained(run: Any) -> None:
    """It fetches a batch before it sees that it is done."""
    trainer = PeftTrainer()
    _, (hooks,) = tunix.attach(trainer, run, log_every=2)
    fetched = []
    for trainer.iter_steps in range(4):
        trainer.train_steps = trainer.iter_steps
        fetched.append(hooks.load_next_train_batch(trainer))
    assert {each[1] for each in trainer.logged} >= {"data/tokens/pages", "data/epochs/code"}
    assert {each[-1] for each in trainer.logged} == {0, 2}
    metadata = json.loads(json.dumps(trainer.custom_checkpoint_metadata()))
    assert (metadata["global_step"], metadata["jaxdata"]["next_row"]) == (3, 3 * ROWS)
    for saved in (metadata, None):  # by the state, and by the number of steps alone
        again = PeftTrainer(metadata=saved, steps=3)
        _, (hooks,) = tunix.attach(again, run)
        batch = hooks.load_next_train_batch(again)
        assert np.array_equal(batch["inputs"], fetched[3]["inputs"])
    while hooks.load_next_train_batch(again) is not None:
        pass
    passes = []
    for _ in range(2):
        batches = iter(lambda: hooks.load_next_eval_batch(again), None)
        passes.append([np.asarray(batch["inputs"]).tolist() for batch in batches])
    assert passes[0] == passes[1]
    assert len(passes[0]) == 3
    again.model.config.vocab_size = 512
    with pytest.raises(InputError, match="ids below 1,000, but the model's vocab_size is 512"):
        tunix.attach(again, run)


def test_levanter_refuses_what_its_loss_would_get_wrong(run: Any) -> None:
    packed = (row for row in build_rows(load_config(run)) if row["segment_ids"].max() > 1)
    with pytest.raises(InputError, match="is a target only: pack with strategy='concat'"):
        levanter.tokens_of(next(packed))
    for config, size, says in (
        (run, SEQ_LEN, r"Levanter's Pos.size - 1 is 191: set pack"),
        ({**run, "loader": {"skip_rows": [[0, 8]]}}, SEQ_LEN + 1, r"loader\.skip_rows is of"),
    ):
        with pytest.raises(InputError, match=says):
            levanter.examples(config, SimpleNamespace(size=size))


def test_lightning_stopped_between_accumulated_batches_goes_on_within_the_update() -> None:
    table = jaxdata.pack(jaxdata.ArrayDocuments(builders.documents(90, longest=13)), seq_len=16)

    def updates(parts: int = 4) -> lightning.Updates:
        return lightning.Updates(jaxdata.torch.Loader(table, batch_size=8, prefetch=0), parts, 1)

    def shown(one: lightning.Updates) -> Iterator[Any]:
        for batch in one:
            flat = batch | {"targets": batch["targets"] * 0}
            lightning.loss(torch.zeros(*batch["inputs"].shape, 2), flat)
            yield batch["inputs"].tolist(), float(batch["divisor"]), one.state_dict()

    whole = list(islice(shown(updates()), 11))
    for at in (0, 2, 3, 6):
        other = updates()
        other.load_state_dict(whole[at][2])
        assert list(islice(shown(other), 10 - at)) == whole[at + 1 :], f"after {at + 1} batches"
    with pytest.raises(InputError, match=r"after 3 of its batches, and accumulate_grad_batche"):
        updates(2).load_state_dict(whole[2][2])
    with pytest.raises(InputError, match="not divisible by accumulate_grad_batches=3: set"):
        next(iter(updates(3)))
    with pytest.raises(InputError, match=r"let it return rows.loss\(logits, batch\)"):
        list(updates())  # a mean of its own
    assert list(updates(1)), "which one batch may have"


def test_lightning_evaluates_the_same_rows_whatever_it_read_before(run: Any, stand_in: Any) -> None:
    stand_in("lightning", LightningDataModule=object)
    module = lightning.datamodule(run)
    module.trainer = SimpleNamespace(strategy=None)
    loader = module.val_dataloader()
    few, every = ([each["inputs"].tolist() for each in islice(loader, n)] for n in (2, None))
    assert every[:2] == few
    assert len(every) == len(loader) > 2


OF_ROWS = {"seq_len": SEQ_LEN, "local_batch_size": ROWS}
OF_TOKENS = {"max_context_length": SEQ_LEN, "num_tokens_per_batch": ROWS * SEQ_LEN}


class BaseDataLoader:
    """As torchtitan's: a class has its `Config`, which makes it."""

    @dataclass(kw_only=True, slots=True)
    class Config:
        pass


@pytest.fixture
def titan(stand_in: Callable[..., Any]) -> Callable[..., Any]:
    """Makes a loader as a version of torchtitan does."""
    torchtitan._data_loader.cache_clear()
    stand_in("torchtitan.components.data.loader", BaseDataLoader=BaseDataLoader)
    stand_in("torchtitan.observability.structured_logger", log_trace_scalar=lambda _: None)

    def build(run: Any, told: Any = OF_ROWS, vocab: int = VOCAB, **settings: Any) -> Any:
        config = torchtitan.dataloader(run)
        for name, value in settings.items():
            setattr(config, name, value)
        tokenizer = SimpleNamespace(get_vocab_size=lambda: vocab)
        one = torchtitan._data_loader()
        return one(config, dp_rank=0, dp_world_size=1, tokenizer=tokenizer, **told)

    return build


@pytest.mark.parametrize("told", [OF_ROWS, OF_TOKENS])
def test_torchtitans_batches_are_the_rows_of_the_config(run: Any, told: Any, titan: Any) -> None:
    """Padding is one document, and labels of -100 are where there is no loss."""
    shape = (ROWS, SEQ_LEN) if told is OF_ROWS else (ROWS * SEQ_LEN,)
    for (taken, labels), native in zip(titan(run, told), jaxdata.load(run), strict=True):
        found = [taken["input"], taken["positions"], labels]
        assert {(tuple(each.shape), each.dtype) for each in found} == {(shape, torch.int64)}
        tokens, positions, labels = (each.reshape(-1, SEQ_LEN).numpy() for each in found)
        padding, loss = native["segment_ids"] == 0, native["loss_mask"]
        np.testing.assert_array_equal(tokens, native["inputs"])
        np.testing.assert_array_equal(labels, np.where(loss, native["targets"], -100))
        np.testing.assert_array_equal(positions[~padding], native["positions"][~padding])
        for row, empty in zip(positions, padding, strict=True):
            assert row[empty].tolist() == list(range(empty.sum()))
    assert padding.all(1).any()


def test_a_validation_of_torchtitan_goes_on_or_ends(run: Any, titan: Any) -> None:
    steps = len(list(titan(run)))
    for name in ("repeat", "infinite"):
        labels = [labels for _, labels in islice(titan(run, **{name: True}), 2 * steps)]
        assert all(map(torch.equal, labels[:steps], labels[steps:]))


def test_what_torchtitan_would_get_wrong_is_refused(run: Any, titan: Any) -> None:
    for told, vocab, says in (
        ({**OF_ROWS, "seq_len": 64}, VOCAB, "training.seq_len is 64: set pack.seq_len to 64"),
        ({**OF_TOKENS, "num_tokens_per_batch": 100}, VOCAB, "=100 is no multiple of max_context_"),
        ({}, VOCAB, "expected one that the README of jaxdata.clients names"),
        (OF_ROWS, 512, "ids below 1,000, but torchtitan's tokenizer is 512"),
    ):
        with pytest.raises(InputError, match=says):
            titan(run, told, vocab)
    with pytest.raises(StateMismatch, match=r"has dp_rank_0, world_size: .* set checkpoint.excl"):
        titan(run).load_state_dict({"dp_rank_0": b"", "world_size": 1})
    run["pack"] = {**run["pack"], "positions": "row"}
    with pytest.raises(InputError, match="torchtitan finds the documents of a row by positions"):
        list(titan(run))


def test_they_say_what_is_missing(run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def import_module(name: str) -> Any:
        raise ModuleNotFoundError(f"No module named {name!r}", name=name)

    monkeypatch.setattr("importlib.import_module", import_module)
    levanter._examples.cache_clear()
    torchtitan._data_loader.cache_clear()
    for begin, says in (
        (partial(levanter.examples, run, SimpleNamespace(size=SEQ_LEN + 1)), "haliax is not insta"),
        (partial(nanodo.install, run), "nanodo is not installed: see https"),
        (partial(megatron.provider(run), (8, 8, 0)), "megatron is not installed: see https"),
        (partial(torchtitan.dataloader, run), "torchtitan is not installed: pip install torcht"),
    ):
        with pytest.raises(InputError, match=says):
            begin()


def test_loggers_take_what_was_delivered() -> None:
    """Lines of a README, as they stand; stand-ins: wandb offline leaves a process behind."""
    docs = jaxdata.ArrayDocuments([[1, 2, 3, 0]] * 8, name="train/web")
    loader = jaxdata.Loader(jaxdata.mix({"web": jaxdata.pack(docs, seq_len=3)}), batch_size=2)
    next(loader)
    expected = {f"data/{name}": value for name, value in loader.scalars().items()}
    assert expected["data/tokens/web"] == expected["data/tokens"] == 6
    seen: dict[str, Any] = {}
    writer = SimpleNamespace(add_scalar=lambda name, value, step: seen.update({name: value}))
    wandb = SimpleNamespace(log=lambda values, *, step: seen.update(wandb=(values, step)))
    for logger in ("TensorBoard", "Weights"):
        (line,) = re.findall(rf"^\| {logger}.* \| `([^|]+)` \|$", of("feed").text, re.MULTILINE)
        exec(line, {"writer": writer, "wandb": wandb, "loader": loader})
    values, step = seen.pop("wandb")
    assert seen.keys() == values.keys() == expected.keys()
    assert (seen["data/tokens/web"], values["data/tokens/web"], step) == (6, 6, 1)


def test_flax(run: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The README's loop, as it stands."""
    nnx = pytest.importorskip("flax.nnx", reason="flax is not installed")

    class Model(nnx.Module):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            rngs = nnx.Rngs(0)
            self.tokens, self.places = (nnx.Embed(n, 16, rngs=rngs) for n in (VOCAB, SEQ_LEN))
            self.qkv, self.head = (nnx.Linear(16, n, rngs=rngs) for n in (48, VOCAB))

        def __call__(self, tokens: Any, positions: Any, ids: Any) -> Any:
            x = self.tokens(tokens) + self.places(positions)
            q, k, v = jnp.split(self.qkv(x), 3, -1)
            seen = (ids[:, :, None] == ids[:, None, :]) & jnp.tri(ids.shape[1], dtype=bool)
            return self.head(x + jax.nn.softmax(jnp.where(seen, q @ k.mT, -1e30)) @ v)

    run["curriculum"] = [{"rows": 48, "mix": {"pages": 0.6, "code": 0.4}}]
    builders.run(tmp_path, **run)
    monkeypatch.chdir(tmp_path)
    model = Model()
    first = mean_by_hand(model, next(jaxdata.load("run.yaml")))
    names = {"jaxdata": jaxdata, "nnx": nnx, "optax": optax, "model": model}
    names["optimizer"] = nnx.Optimizer(model, optax.adam(1e-2), wrt=nnx.Param)
    recipe = of("clients").text.split("### A loop in Flax\n")[1].split("```text\n")[1]
    exec(recipe.split("```")[0], names)
    assert len(names["losses"]) == 6
    assert abs(names["losses"][0] - first) < 1e-5
    assert names["losses"][-1] < names["losses"][0]
