"""Programs around transformers' Trainer: a tiny model for them, and what they train on."""

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
import transformers
from tokenizers import Tokenizer, models

from jaxdata.base.errors import InputError
from jaxdata.clients.hf import Jaxdata
from tests.clients.installed.promises import Promises, Steps
from tests.clients.tiny import ROWS, SEQ_LEN, VOCAB, logits_of, mean_by_hand


def tiny_llama() -> Any:
    """Of one layer."""
    torch.manual_seed(0)
    sizes = {"vocab_size": VOCAB, "max_position_embeddings": SEQ_LEN, "hidden_size": 16}
    sizes |= {"intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
    return transformers.LlamaForCausalLM(transformers.LlamaConfig(**sizes))


def tiny_tokenizer() -> Any:
    """One that is never asked."""
    words = Tokenizer(models.WordLevel({"a": 0, "<end>": 1}, unk_token="a"))
    marks = {"eos_token": "<end>", "pad_token": "<end>"}
    return transformers.PreTrainedTokenizerFast(tokenizer_object=words, **marks)


def make_model(folder: Path) -> Path:
    """A folder with both."""
    if not folder.exists():
        tiny_llama().save_pretrained(folder)
        tiny_tokenizer().save_pretrained(folder)
    return folder


def newest(folder: Path) -> str | None:
    """The last checkpoint below a folder."""
    found = max(folder.glob("out/checkpoint-*"), key=lambda each: each.name, default=None)
    return found and str(found)


@contextmanager
def noted(native: Any = None) -> Iterator[Steps]:
    """The steps that are trained meanwhile, with the loss of each by hand where there are rows."""
    seen, untold = Steps(), Jaxdata.compute_loss

    def compute_loss(self: Any, model: Any, inputs: Any, *given: Any, **named: Any) -> Any:
        if model.training and native is not None:
            with torch.no_grad():
                seen.by_hand.append(mean_by_hand(partial(logits_of, model), next(native)))
        found = untold(self, model, inputs, *given, **named)
        if model.training:
            loss = found[0] if isinstance(found, tuple) else found
            seen.losses.append(float(self.accelerator.reduce(loss.detach().clone(), "mean")))
            seen.tokens.append(inputs["input_ids"].numpy()[None])
        return found

    Jaxdata.compute_loss = compute_loss  # type: ignore[method-assign]
    try:
        yield seen
    finally:
        Jaxdata.compute_loss = untold  # type: ignore[method-assign]


def join(number: int, ranks: int, port: int) -> None:
    """Make this process one of several, as torchrun does."""
    # Transformers 5.6 loads the optimizer of several processes on "cpu:0", which torch has not.
    torch.serialization.register_package(
        99, lambda _: None, lambda storage, place: storage if place == "cpu:0" else None
    )
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    os.environ |= {"RANK": str(number), "WORLD_SIZE": str(ranks), "LOCAL_RANK": str(number)}
    os.environ |= {"LOCAL_WORLD_SIZE": str(ranks), "ACCELERATE_USE_CPU": "true"}


class Programs(Promises):
    """Also what holds of programs around the Trainer, and what each of them refuses."""

    size: str
    """its name for the rows of a micro-batch"""
    given: ClassVar[dict[str, Any]] = {}
    refused: ClassVar[list[tuple[dict[str, Any], str]]]

    def test_accumulated_batches_update_as_the_whole_batch(self, data: Any, tmp_path: Path) -> None:
        uneven = {**data, "pack": {**data["pack"], "strategy": "pad"}}
        found = []
        for parts in (1, 4):
            asked = {self.size: ROWS // parts, "gradient_accumulation_steps": parts}
            (tmp_path / f"{parts}").mkdir()
            losses = self.train(uneven, tmp_path / f"{parts}", 2, **asked, **self.given).losses
            assert len(losses) == 2 * parts
            found.append([sum(losses[:parts]), sum(losses[parts:])])
        assert found[0] == pytest.approx(found[1], rel=1e-4)

    def test_what_would_train_on_something_else_is_refused(self, data: Any, tmp_path: Path) -> None:
        for given, said in self.refused:
            with pytest.raises(InputError, match=re.escape(said)):
                self.train(data, tmp_path, 1, **{**self.given, **given})
