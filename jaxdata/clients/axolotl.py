"""axolotl: the rows of a config instead of its datasets, by two lines of its YAML.

    plugins: [jaxdata.clients.axolotl.Plugin]
    jaxdata: run.yaml

It is axolotl's own trainer, with the client of transformers before it (`hf.py`), whose checkpoints
have the loader's state.
"""

from functools import cache
from math import ceil
from typing import Any

from pydantic import BaseModel

from jaxdata.base.errors import InputError
from jaxdata.clients.agreement import refuse
from jaxdata.clients.hf import OWN_ORDER, OWN_ROWS, loaders_of, without_collators

try:
    from axolotl.integrations.base import BasePlugin
except ModuleNotFoundError:  # axolotl loads the plugin; anybody else only looks at it
    BasePlugin = object

_OWN_DATA = "what is trained and scored on is in the run of jaxdata"
_WRONG = {
    **dict.fromkeys(("sample_packing", "eval_sample_packing", "batch_flattening"), OWN_ROWS),
    "context_parallel_size": "rows are not cut for context parallelism",
    **dict.fromkeys(
        ("datasets", "test_datasets", "pretraining_dataset", "val_set_size"), _OWN_DATA
    ),
    **dict.fromkeys(("curriculum_sampling", "group_by_length"), OWN_ORDER),
    "fix_untrained_tokens": "that reads the dataset, which is a loader",
    "trainer_cls": "the plugin brings a trainer",
    "rl": "rows of texts are for training on texts",
    "reward_model": "rows of texts are for training on texts",
    "process_reward_model": "rows of texts are for training on texts",
}
"""settings that change nothing with a loader, or something else than they say"""


class Arguments(BaseModel):
    """What the plugin adds to axolotl's settings."""

    jaxdata: str | dict[str, Any] | None = None


class Plugin(BasePlugin):  # type: ignore[misc]
    """Trains on a config and scores on its `eval` sets; raises InputError where that is not so."""

    def get_input_args(self) -> str:
        """The name of the model of the settings."""
        return f"{__name__}.{Arguments.__name__}"

    def register(self, cfg: Any) -> None:
        """Look at the settings before axolotl does, which asks for datasets."""
        if not cfg.get("jaxdata"):
            raise InputError(f"plugins name {__name__}.Plugin: say what to train on, jaxdata: FILE")
        fine = {"context_parallel_size": (None, 1)}
        refuse(cfg.get, _WRONG, "with a run of jaxdata", fine)
        cfg["datasets"] = [{"path": "jaxdata", "type": "completion"}]  # never looked for
        cfg["dataloader_num_workers"] = 0  # the loader's are in the run

    def load_datasets(self, cfg: Any, preprocess: bool = False) -> Any:
        """The loaders; the training loader's batch is that of all ranks."""
        if preprocess:
            raise InputError("there is nothing to preprocess: jaxdata convert has done it")
        from axolotl.common.datasets import TrainDatasetMeta

        run = cfg["jaxdata"]
        train, scored = loaders_of(
            run if isinstance(run, str) else dict(run),
            rows=cfg["micro_batch_size"],
            seq_len=cfg["sequence_len"],
            trainer="axolotl's sequence_len",
        )
        updates = -(-len(train) // cfg["gradient_accumulation_steps"])
        steps = cfg["max_steps"] or ceil(updates * (cfg["num_epochs"] or 1))
        return TrainDatasetMeta(train, scored or None, steps)

    def get_trainer_cls(self, cfg: Any) -> type[Any]:  # noqa: ARG002 - axolotl calls it so
        """The trainer that has loaders for datasets."""
        return _trainer()


@cache
def _trainer() -> type[Any]:
    from axolotl.core.trainers import AxolotlTrainer

    class Trainer(without_collators(AxolotlTrainer)):  # type: ignore[misc]
        """Divides the loss of a batch by the targets of its whole update, as transformers' does.

        axolotl takes that from models whose forward passes `num_items_in_batch` on without naming
        it, and averages the means of an update's batches.
        """

        @property
        def model_accepts_loss_kwargs(self) -> bool:
            """Whether the model divides its loss by a given number; what transformers found."""
            return bool(self.__dict__["_divides"])

        @model_accepts_loss_kwargs.setter
        def model_accepts_loss_kwargs(self, found: bool) -> None:
            self.__dict__.setdefault("_divides", found)

    return Trainer
