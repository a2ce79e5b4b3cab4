"""LLaMA-Factory: the rows of a config instead of its datasets, for the stages `pt` and `sft`.

    from jaxdata.clients import llamafactory
    llamafactory.install("run.yaml")  # before llamafactory.train.tuner.run_exp()

Its arguments want names of datasets: `dataset: jaxdata`, and `eval_dataset: jaxdata` to evaluate.
Its trainers are its own, with the client of transformers before them (`hf.py`), whose checkpoints
have the loader's state.
"""

from functools import partial
from typing import Any

from jaxdata.base.errors import InputError
from jaxdata.clients.agreement import Run, module_of, refuse
from jaxdata.clients.hf import OWN_ROWS, Jaxdata, loaders_of, without_collators

_WRONG = {
    "dataset": "its rows are those of the run",
    "eval_dataset": "what is scored is in the run",
    "neat_packing": OWN_ROWS,
    "streaming": "a loader reads as it goes",
    "val_size": "the run names what is scored, in eval",
    "max_samples": "give rows or epochs in the run's curriculum",
    "mix_strategy": "give the mixture in the run's curriculum",
    "mask_history": "which targets have loss is in the loader's rows",
    "train_on_prompt": "which targets have loss is in the loader's rows",
}
"""arguments that change nothing with a loader"""
_TRAINERS = {"pt": "CustomTrainer", "sft": "CustomSeq2SeqTrainer"}


def install(run: Run) -> None:
    """Make LLaMA-Factory train on a config and score on its `eval` sets.

    Args:
        run: a config, as for `jaxdata.load`.

    Raises:
        InputError: LLaMA-Factory is not installed; later, where it is asked for what would train
            on something else: another stage, packing, another length of rows.
    """
    for stage in ("pt", "sft", "rm", "dpo", "kto", "ppo"):
        name = f"llamafactory.train.{stage}.workflow"
        workflow = module_of(name, "pip install llamafactory")
        workflow.get_dataset = partial(_loaders, run)
        if stage in _TRAINERS:
            base = getattr(workflow, _TRAINERS[stage])
            if not issubclass(base, Jaxdata):
                setattr(workflow, base.__name__, without_collators(base))


def _loaders(run: Run, *given: Any, stage: str, **_: Any) -> dict[str, Any]:
    """What LLaMA-Factory's `get_dataset` returns, with loaders for datasets."""
    _, _, data_args, training_args = given
    if stage not in _TRAINERS:
        raise InputError(f"stage={stage} with a run of jaxdata: give pt or sft, on texts")
    defaults = type(data_args)()
    fine: dict[str, tuple[Any, ...]] = {n: (None, False, 0, getattr(defaults, n)) for n in _WRONG}
    fine |= dict.fromkeys(("dataset", "eval_dataset"), (["jaxdata"], None))
    refuse(partial(getattr, data_args), _WRONG, "with a run of jaxdata", fine)
    train, scored = loaders_of(
        run,
        rows=training_args.per_device_train_batch_size,
        seq_len=data_args.cutoff_len,
        trainer="LLaMA-Factory's cutoff_len",
    )
    return {"train_dataset": train} | ({"eval_dataset": scored} if scored else {})
