"""Megatron-LM: the rows of a config through `--dataloader-type external`.

    from jaxdata.clients import megatron
    pretrain(megatron.provider("run.yaml"), …, extra_args_provider=megatron.add_arguments)

in a copy of `pretrain_gpt.py`, started with `--dataloader-type external
--dataloader-inter-document-masking --calculate-per-token-loss --dataloader-save <folder>`. The
position is Megatron's own `consumed_train_samples`, so data parallelism and micro-batches may
change at any restart.
"""

import json
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any, Self

import numpy as np

from jaxdata.base.errors import InputError, StateMismatch
from jaxdata.clients import agreement
from jaxdata.config import Config, load_config
from jaxdata.feed.layouts import Layout, Megatron

Provider = Callable[..., tuple[Any, Any, None]]


def provider(run: agreement.Run, *, across_documents: bool = False, **overrides: Any) -> Provider:
    """The provider of data loaders that `pretrain` calls.

    Args:
        run: a config, as for `jaxdata.load`. Its `eval_split` is for validation: the same rows each
            time. The batch size is Megatron's: that of the config is not used.
        across_documents: let the documents of a row attend to those before them, as Megatron does
            with its own datasets unless it is told otherwise.
        overrides: fields of the config, nested or by dotted names.
    """
    settings = load_config(run, overrides)

    def provide(samples: Any, **_: Any) -> tuple[Any, Any, None]:
        args = _megatron("training").get_args()
        check(settings, args)
        if _megatron("core").parallel_state.get_tensor_model_parallel_rank() > 0:
            return None, None, None  # the first rank of a tensor-parallel group reads for all
        layout = layout_for(args, across_documents)
        train = MicroBatches(settings, args, layout)
        train.resume(samples[0])
        valid = args.eval_iters and MicroBatches(settings, args, layout, settings.scored_split)
        return train, valid or None, None

    provide.is_distributed = True  # type: ignore[attr-defined]
    return provide


def add_arguments(parser: Any) -> Any:
    """Add `--dataloader-save`, which only some of Megatron's own scripts have."""
    parser.add_argument(
        "--dataloader-save", default=None, help="folder for the state of the data, as --save"
    )
    return parser


def check(run: Config, args: Any) -> None:
    """Refuse arguments of Megatron that the rows do not fit, or that would change nothing."""
    agreement.check_seq_len(run, args.seq_length, "Megatron's --seq-length")
    agreement.check_vocabulary(run, args.padded_vocab_size, "Megatron's padded vocabulary")

    def value_of(option: str) -> Any:
        return getattr(args, option[2:].replace("-", "_"), None)

    fine = {"--dataloader-type": ("external",)}
    agreement.refuse(value_of, _REFUSED, "with a run of jaxdata", fine)
    if not getattr(args, "calculate_per_token_loss", False):
        raise InputError(
            "without --calculate-per-token-loss Megatron averages the means of micro-batches, "
            "which weighs each target by how few others its micro-batch has: give "
            "--calculate-per-token-loss"
        )
    if run.loader.skip_rows and not getattr(args, "dataloader_save", None):
        raise InputError(
            "loader.skip_rows without --dataloader-save: Megatron counts the samples it consumed, "
            "and skipped ones are not among them; give --dataloader-save <folder>"
        )


_REFUSED = {
    "--dataloader-type": "the sampler of another would choose the rows",
    "--eod-mask-loss": "it is of Megatron's own datasets, and would leave the loss of EOD as it is",
    "--phase-transition-iterations": "it counts samples anew in each phase; the config has phases",
    "--sft": "it expects batches of its SFTDataset",
}


def layout_for(args: Any, across_documents: bool) -> Layout:
    """The layout that Megatron's attention takes with these arguments.

    Raises:
        InputError: the documents of a row would attend to each other though nobody asked for it.
    """
    masked = args.create_attention_mask_in_dataloader
    if across_documents:
        whole = Megatron(attention_mask=masked)
        return lambda batch: whole({**batch, "segment_ids": np.ones_like(batch["segment_ids"])})
    if args.dataloader_inter_document_masking:
        return Megatron(cu_seqlens=True)
    if masked and args.transformer_impl == "local" and not args.masked_softmax_fusion:
        return Megatron(attention_mask=True)
    raise InputError(
        "with these arguments Megatron's attention is causal over the whole row: documents would "
        "attend to those before them. Give --dataloader-inter-document-masking; or, without "
        "Transformer Engine, --transformer-impl local --no-masked-softmax-fusion; or, to train so, "
        "provider(…, across_documents=True)"
    )


class MicroBatches:
    """The micro-batches of a data-parallel rank: to train on, or the same at every evaluation.

    With `balance`, the rows of a global batch are dealt to ranks and their micro-batches at once,
    unless its size grows during training: then each micro-batch is dealt to the ranks by itself.
    """

    def __init__(self, run: Config, args: Any, layout: Layout, split: str | None = None) -> None:
        from jaxdata.torch import Loader

        ranks = _megatron("core").parallel_state
        rank, size = ranks.get_data_parallel_rank(), ranks.get_data_parallel_world_size()
        eval_rows = getattr(args, "eval_micro_batch_size", args.micro_batch_size)
        rows = size * (args.micro_batch_size if split is None else eval_rows)
        grows = getattr(args, "rampup_batch_size", None)
        together = split is None and run.loader.balance and not grows
        self._args, self._count = args, args.global_batch_size // rows if together else 1
        chosen = {"batch_size": rows * self._count, "microbatches": self._count, "layout": layout}
        self.loader = agreement.loader_of(Loader, run, split, **chosen, rank=rank, world_size=size)
        self._microbatches: deque[dict[str, Any]] = deque()
        self._taken, self._calls = 0, None if split is None else len(self.loader)
        if split is not None and not args.full_validation:
            batch = getattr(args, "eval_global_batch_size", args.global_batch_size)
            self._calls = args.eval_iters * batch // rows
            if self._calls > len(self.loader):
                raise InputError(
                    f"--eval-iters {args.eval_iters} evaluates {self._calls * rows:,} rows, and "
                    f"split {split!r} has {len(self.loader.rows):,}: lower it to "
                    f"{len(self.loader) * rows // batch}, or give --full-validation"
                )

    def __len__(self) -> int:
        return len(self.loader)

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> dict[str, Any]:
        if self._taken == self._calls:
            self._taken = 0
            self.loader.reset()
        if not self._microbatches:
            self._taken += 1
            batch: dict[str, Any] = next(self.loader)
            rows = len(batch["tokens"]) // self._count
            cuts = [slice(part * rows, (part + 1) * rows) for part in range(self._count)]
            self._microbatches += [{name: a[cut] for name, a in batch.items()} for cut in cuts]
        return self._microbatches.popleft()

    def resume(self, wanted: int | None) -> None:
        """Go to where the checkpoint that Megatron loaded was taken; refuse to want more rows."""
        held = len(self.loader) * self.loader.batch_sizes[0][1]
        if wanted is not None and wanted > held:
            raise InputError(
                f"Megatron trains on {wanted:,} samples, and the config has {held:,} rows: lower "
                "--train-iters or --train-samples, or give its sources more epochs"
            )
        consumed = self._args.consumed_train_samples
        state = saved_state(getattr(self._args, "dataloader_save", None), self._args.iteration)
        if state is None:
            self.loader.seek(row=consumed)
            return
        self.loader.set_state(state)
        delivered = self.loader.report().rows
        if delivered != consumed:
            raise StateMismatch(
                f"--dataloader-save has the state after {delivered:,} samples, and the checkpoint "
                f"is of {consumed:,}: give the folder of the same run, or none to go on by "
                "the checkpoint's number alone"
            )

    def save_state(self) -> dict[str, str]:
        """For `--dataloader-save`: the same on every rank."""
        return {"jaxdata": json.dumps(self.loader.get_state())}


def saved_state(folder: str | None, iteration: int) -> Any:
    """The state that `--dataloader-save` holds of an iteration; None if it holds none at all."""
    import torch

    if not folder or not iteration or not list(Path(folder).glob("iter_*")):
        return None
    found = sorted(Path(folder).glob(f"iter_{iteration:07d}/mp_rank_00*/*_dprank000.pt"))
    if not found:
        raise StateMismatch(
            f"--dataloader-save {folder} has no state of iteration {iteration}: give the folder of "
            "the run, or none to go on by the checkpoint's number of samples alone"
        )
    saved = torch.load(found[0], weights_only=True)["dataloader_state_dict"]
    return json.loads(saved["jaxdata"])


def _megatron(name: str) -> Any:
    return agreement.module_of(f"megatron.{name}", "see https://github.com/NVIDIA/Megatron-LM")
