"""MaxText: the rows of a config instead of its own data, elastic, the state in its checkpoints.

    python -m jaxdata.clients.maxtext base.yml jaxdata=run.yaml steps=1000 ...

runs MaxText's `trainers.pre_train.train` with its arguments. It checkpoints the position of grain's
`ElasticIterator` once for all processes, and of nothing else: so the loader has that face here.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Self

import grain

from jaxdata.base.errors import InputError, JaxdataError, SourceExhausted
from jaxdata.clients import agreement
from jaxdata.config import Config, load_config
from jaxdata.feed.layouts import Layout, maxtext as maxtext_layout
from jaxdata.feed.loader import Loader
from jaxdata.rows.table import Batch

_log = logging.getLogger("jaxdata.clients.maxtext")
_OURS = "jaxdata="
_UNREAD = "read-by-jaxdata"
# What else MaxText's config must say: its checkpoints hold an iterator of type grain only, and its
# checks want file patterns.
_NEEDED = {"dataset_type": "grain", "grain_train_files": _UNREAD, "grain_eval_files": _UNREAD}


def main(arguments: Sequence[str]) -> None:
    """Train: MaxText's own arguments, and `jaxdata=<config>`.

    Raises:
        Exception: what ended the data, where MaxText only stops as if all were done.
    """
    run, rest = split_arguments(arguments)
    settings, made = load_config(run, {}), list[TrainIterator]()
    interface = _maxtext("input_pipeline.input_pipeline_interface")
    training = _maxtext("trainers.pre_train.train")
    first_step: Any = getattr(training, "get_first_step", None)

    def create(config: Any, mesh: Any) -> Any:
        train, evaluation = _iterators(settings, config, mesh, has_step=first_step is not None)
        made.append(train)
        return train, evaluation

    def get_first_step(*given: Any) -> int:
        """MaxText asks for it when the checkpoint is loaded, and before the first batch."""
        step: int = first_step(*given)
        if step and not made[-1].restored:
            _go_on_by_step(settings, made[-1].loader, step)
        return step

    interface.create_data_iterator = create
    if first_step is not None:
        training.get_first_step = get_first_step
    try:
        training.main(["maxtext", *rest])
    finally:
        if first_step is not None:
            training.get_first_step = first_step
    if made and made[-1].failure is not None:
        raise made[-1].failure


def _go_on_by_step(run: Config, loader: Loader, step: int) -> None:
    _check_skips(run)
    loader.seek(step=step)
    _log.warning(
        f"the checkpoint has no position of the data: going on by its step {step}, at row "
        f"{loader.next_row}; whether it was of the same data and batch size is not checked"
    )


def split_arguments(arguments: Sequence[str]) -> tuple[str, list[str]]:
    """The config for jaxdata, and MaxText's arguments with those that it needs besides.

    >>> split_arguments(["base.yml", "jaxdata=run.yaml", "steps=10"])[1][:2]
    ['base.yml', 'steps=10']
    """
    runs = [each.removeprefix(_OURS) for each in arguments if each.startswith(_OURS)]
    if len(runs) != 1:
        raise InputError(
            f"expected one argument {_OURS}<config>, got {len(runs)}: python -m "
            "jaxdata.clients.maxtext base.yml jaxdata=run.yaml, and MaxText's own arguments"
        )
    rest = [each for each in arguments if not each.startswith(_OURS)]
    given = dict(each.split("=", 1) for each in rest if "=" in each)
    clash = [name for name in _NEEDED if given.get(name, _NEEDED[name]) != _NEEDED[name]]
    if clash:
        raise InputError(
            f"{clash[0]}={given[clash[0]]} and {_OURS}{runs[0]} both say what to train on: remove "
            f"{clash[0]}"
        )
    return runs[0], rest + [f"{name}={value}" for name, value in _NEEDED.items()]


def create_data_iterator(
    run: agreement.Run, **overrides: Any
) -> Callable[[Any, Any], tuple[TrainIterator, EvalIterator | None]]:
    """A replacement of MaxText's `create_data_iterator(config, mesh)`, for a launcher of your own.

    Args:
        run: a config, as for `jaxdata.load`.
        overrides: its fields, nested or by dotted names.
    """
    settings = load_config(run, overrides)
    return lambda config, mesh: _iterators(settings, config, mesh, has_step=False)


def _iterators(
    run: Config, config: Any, mesh: Any, has_step: bool
) -> tuple[TrainIterator, EvalIterator | None]:
    check(run, config, has_step)

    def loader(split: str | None, batch_size: int, rules: Any, microbatches: int = 1) -> Loader:
        sharding = _maxtext("utils.sharding").get_input_data_sharding(config, mesh, rules=rules)
        layout: Layout = maxtext_layout
        if microbatches > 1:
            rows, _ = sharding.shard_shape((batch_size, run.pack.seq_len))
            layout = partial(strided, rows=rows, microbatches=microbatches)
        chosen = {"layout": layout, "batch_size": batch_size, "microbatches": microbatches}
        made: Loader = agreement.loader_of(Loader, run, split, sharding=sharding, **chosen)
        return made

    steps = int(getattr(config, "gradient_accumulation_steps", 1)) if run.loader.balance else 1
    train = loader(None, config.global_batch_size_to_load, config.logical_axis_rules, steps)
    if len(train) < config.steps:
        _log.warning(
            f"the rows end after step {len(train)}, before MaxText's steps={config.steps}: "
            "training stops there"
        )
    if config.eval_interval <= 0:
        return TrainIterator(train), None
    size, rules = config.global_batch_size_to_load_eval, config.logical_axis_rules_for_eval
    return TrainIterator(train), EvalIterator(loader(run.scored_split, size, rules))


def strided(batch: Batch, rows: int, microbatches: int) -> Batch:
    """MaxText's layout, the rows of each data shard as its gradient accumulation takes them.

    The loader's micro-batches are consecutive rows; MaxText's number *j* of *k* is every *k*-th
    row, from *j* on.

    Args:
        batch: of a process.
        rows: of a data shard.
        microbatches: of a data shard.
    """
    found = maxtext_layout(batch)
    for name, array in found.items():
        cut = array.reshape(-1, microbatches, rows // microbatches, array.shape[-1])
        found[name] = cut.swapaxes(1, 2).reshape(array.shape)
    return found


def check(run: Config, config: Any, has_step: bool) -> None:
    """Refuse a config of MaxText that the rows do not fit, or that would lose some of them.

    Args:
        run: the rows.
        config: MaxText's.
        has_step: whether the step of a checkpoint without position can be asked for.
    """
    agreement.check_seq_len(run, config.max_target_length, "MaxText's max_target_length")
    agreement.check_vocabulary(run, config.vocab_size, "MaxText's vocab_size")
    batch = config.global_batch_size_to_load
    if "batch_size" in run.loader.model_fields_set and run.loader.batch_size != batch:
        raise InputError(
            f"loader.batch_size={run.loader.batch_size}, but MaxText's global batch is {batch} "
            "(per_device_batch_size * devices * gradient_accumulation_steps): change one of them, "
            "or remove loader.batch_size"
        )
    wrong = {name: why for name, (_, why) in _REFUSED.items()}
    fine = {name: (wanted,) for name, (wanted, _) in _REFUSED.items()}
    given = {name: getattr(config, name, wanted) for name, (wanted, _) in _REFUSED.items()}
    agreement.refuse(given.get, wrong, "of MaxText with a run of jaxdata", fine)
    for name in _STATELESS:
        if getattr(config, name, False):
            if not has_step:
                raise InputError(
                    f"MaxText's {name}=True saves no position of the data: train with python -m "
                    f"jaxdata.clients.maxtext, which goes on by the step, or set it to False"
                )
            _check_skips(run)
    if batch != config.global_batch_size_to_train_on:
        raise InputError(
            f"MaxText loads batches of {batch} rows and trains on "
            f"{config.global_batch_size_to_train_on} of them; the others would be lost: set "
            "per_device_batch_size to a whole number"
        )


_REFUSED: dict[str, tuple[Any, str]] = {
    "dataset_type": ("grain", "others keep no position of the data in checkpoints"),
    "packing": (True, "without it some attention kernels mix the documents of a row"),
    "enable_rampup_batch_size": (False, "it loses the rows it holds back at every checkpoint"),
    "expansion_factor_real_data": (-1, "each host reads its own rows"),
    "colocated_python_data_input": (False, "it moves iterators to other processes"),
    "enable_diloco": (False, "replicas train on shapes of batches that are not rows"),
    "reuse_example_batch": (0, "it trains on its first batch again and again"),
    "use_tunix_gradient_accumulation": (False, "it weighs targets by how few a micro-batch has"),
}
"""settings, each with the value that it has to have"""
# Their checkpoints hold the model alone.
_STATELESS = ("enable_emergency_checkpoint", "enable_multi_tier_checkpointing")


def _check_skips(run: Config) -> None:
    if run.loader.skip_rows:
        raise InputError(
            "loader.skip_rows with a checkpoint that has no position of the data: its step does "
            "not tell which rows were skipped; remove loader.skip_rows, or train with MaxText's "
            "ordinary checkpoints"
        )


class TrainIterator(grain.experimental.ElasticIterator):  # type: ignore[misc]
    """Global batches for MaxText, which saves their position as an `ElasticIterator`'s.

    It is its own `local_iterator`. One process writes the position for all, to
    `<step>/iter/process_0.json`, with Orbax v0 and v1.
    """

    failure: Exception | None = None
    """the error that ended the batches; MaxText takes it for the end of its training"""
    restored = False
    """whether the position was in a checkpoint"""

    def __init__(self, loader: Loader) -> None:
        super(grain.experimental.ElasticIterator, self).__init__()
        self.loader = loader

    @property
    def local_iterator(self) -> Self:
        """What MaxText checkpoints."""
        return self

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> dict[str, Any]:
        try:
            batch: dict[str, Any] = next(self.loader)
        except SourceExhausted as halt:
            raise StopIteration(str(halt)) from halt  # MaxText stops on it and keeps its words
        except StopIteration:
            raise
        except Exception as failure:
            self.failure = failure
            raise
        return batch

    def reset(self) -> None:
        """Go back to the first row."""
        self.loader.reset()

    def get_state(self) -> dict[str, Any]:
        """The state of the loader, the same in every process."""
        return self.loader.get_state()

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Go on there, with any number of processes; raises StateMismatch for another run's."""
        self.loader.set_state(state)
        self.restored = True

    def close(self) -> None:
        """Stop threads and worker processes."""
        self.loader.close()


class EvalIterator(TrainIterator):
    """An iterator of the same rows at every evaluation."""

    def __iter__(self) -> Self:
        self.reset()
        return self


def _maxtext(name: str) -> Any:
    return agreement.module_of(f"maxtext.{name}", "see https://github.com/AI-Hypercomputer/maxtext")


if __name__ == "__main__":
    try:
        main(sys.argv[1:])
    except JaxdataError as error:
        sys.exit(f"error: {error}")
