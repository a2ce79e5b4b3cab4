"""nanodo: the rows of a config instead of its TFDS data.

    from jaxdata.clients import nanodo
    nanodo.install("run.yaml")  # before nanodo.train.train_and_evaluate(c)

The state lies in nanodo's own checkpoints, which hold grain's iterators: for each process a file.
"""

from typing import Any

import numpy as np

from jaxdata.clients import agreement
from jaxdata.config import load_config
from jaxdata.feed.loader import Loader
from jaxdata.rows.table import Batch


def install(run: agreement.Run, *, across_documents: bool = False) -> None:
    """Make nanodo train on a config and evaluate on its `eval_split`, to the last target.

    Args:
        run: a config, as for `jaxdata.load`.
        across_documents: whether rows may hold several documents, which then see each other.
    """
    settings = load_config(run, {})

    def layout(batch: Batch) -> Any:
        if not across_documents:
            agreement.check_alone(batch, "nanodo")
        return np.stack([batch["inputs"], batch["targets"], batch["loss_mask"]], -1)

    def py_batched_tfds(*, split: str, batch_size: int, context_size: int, **_: Any) -> Any:
        agreement.check_seq_len(settings, context_size, "nanodo's context_size")
        chosen = None if split == settings.split else settings.scored_split
        loader = agreement.loader_of(Loader, settings, chosen, batch_size=batch_size, layout=layout)
        return loader if chosen is None else agreement.Evaluation(loader)

    data = agreement.module_of("nanodo.data", "see https://github.com/google-deepmind/nanodo")
    data.py_batched_tfds = py_batched_tfds
    data.get_in_out = in_and_out


def in_and_out(in_BxLx3: Any, pad_id: int = 0) -> tuple[Any, Any, Any]:  # noqa: ARG001, N803
    """Inputs, targets and which of them count, (batch, seq_len) each, for nanodo's loss."""
    return in_BxLx3[..., 0], in_BxLx3[..., 1], in_BxLx3[..., 2].astype(bool)
