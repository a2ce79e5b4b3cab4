"""nanochat: its two data loaders of a config, for `scripts/base_train.py`.

    from jaxdata.clients import nanochat
    tokenizing_distributed_data_loader_with_state_bos_bestfit = nanochat.with_state("run.yaml")
    tokenizing_distributed_data_loader_bos_bestfit = nanochat.without_state("run.yaml")

after nanochat's own imports, and `loss = nanochat.loss(model, x, y)` for its `loss = model(x, y)`.
The state lies where nanochat keeps its own, in the checkpoint's `dataloader_state_dict`; it is
exact, and fits any number of processes.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from jaxdata.clients.agreement import PairLoader, Run, over_slots
from jaxdata.config import load_config

Batches = Callable[..., Iterator[Any]]
_LINE = "loss = nanochat.loss(model, x, y) for loss = model(x, y)"
_PLACE = ("epoch", "pq_idx", "rg_idx")  # of nanochat's own state, which its log prints


def loss(model: Any, inputs: Any, targets: Any) -> Any:
    """The loss of a micro-batch in which all targets of a step weigh the same: per slot."""
    return over_slots(model(inputs, targets, loss_reduction="sum"), targets)


def with_state(run: Run, *, across_documents: bool = False) -> Batches:
    """A function of nanochat's arguments: batches `(inputs, targets, state)`, to train on.

    Args:
        run: a config, as for `jaxdata.load`; its `eval_split` is nanochat's split `"val"`.
        across_documents: whether rows may hold several documents, which then see each other.
    """

    def batches(
        *given: Any, resume_state_dict: Mapping[str, Any] | None = None, **named: Any
    ) -> Iterator[Any]:
        made = _loader(run, across_documents, _LINE, *given, **named)
        if resume_state_dict is not None:
            made.resume({k: v for k, v in resume_state_dict.items() if k not in _PLACE})
        while True:
            # What nanochat's log prints of its own state: the pass, from 1, and the row.
            pair, state = made.next(), made.state
            place = (1 + state.get("passes", 0), None, state["next_row"])
            yield *pair, {**state, **dict(zip(_PLACE, place, strict=True))}

    return batches


def without_state(run: Run, *, across_documents: bool = False) -> Batches:
    """As :func:`with_state`: batches `(inputs, targets)`, to evaluate on."""

    def batches(*given: Any, **named: Any) -> Iterator[Any]:
        return iter(_loader(run, across_documents, None, *given, **named).next, None)

    return batches


def _loader(
    run: Run,
    across_documents: bool,
    line: str | None,
    tokenizer: Any,
    B: int,  # noqa: N803 - nanochat's names
    T: int,  # noqa: N803
    split: str,
    device: Any = "cuda",
    **_: Any,
) -> PairLoader:
    given = {"rows": B, "seq_len": T, "vocab_size": tokenizer.get_vocab_size(), "device": device}
    given |= {"line": None if split == "val" else line, "across_documents": across_documents}
    chosen = load_config(run, {}).scored_split if split == "val" else None
    return PairLoader(run, chosen, "nanochat", **given)
