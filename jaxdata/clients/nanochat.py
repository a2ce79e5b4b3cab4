"""nanochat: its two data loaders of a config, for `scripts/base_train.py`.

    from jaxdata.clients import nanochat
    tokenizing_distributed_data_loader_with_state_bos_bestfit = nanochat.with_state("run.yaml")
    tokenizing_distributed_data_loader_bos_bestfit = nanochat.without_state("run.yaml")

after nanochat's own imports. The state lies where nanochat keeps its own, in the checkpoint's
`dataloader_state_dict`; it is exact, and fits any number of processes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from jaxdata.clients.agreement import Run
from jaxdata.clients.whole_rows import PairLoader
from jaxdata.config import load_config

Batches = Callable[..., Iterator[Any]]


def with_state(run: Run, *, across_documents: bool = False) -> Batches:
    """A function of nanochat's arguments: batches `(inputs, targets, state)`.

    Args:
        run: a config, as for `jaxdata.load`; its `eval_split` is nanochat's split `"val"`.
        across_documents: whether rows may hold several documents, which then see each other.
    """

    def batches(
        tokenizer: Any,
        B: int,  # noqa: N803 - nanochat's names
        T: int,  # noqa: N803
        split: str,
        device: Any = "cuda",
        resume_state_dict: Mapping[str, Any] | None = None,
        **_: Any,
    ) -> Iterator[Any]:
        made = PairLoader(
            run,
            load_config(run, {}).eval_split if split == "val" else None,
            "nanochat",
            rows=B,
            seq_len=T,
            vocab_size=tokenizer.get_vocab_size(),
            across_documents=across_documents,
            device=device,
        )
        made.resume(resume_state_dict)
        return made.pairs()

    return batches


def without_state(run: Run, *, across_documents: bool = False) -> Batches:
    """As :func:`with_state`: batches `(inputs, targets)`."""
    batches = with_state(run, across_documents=across_documents)

    def pairs(*given: Any, **named: Any) -> Iterator[Any]:
        return (pair for *pair, _ in batches(*given, **named))

    return pairs
