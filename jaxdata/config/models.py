"""The fields of a config, each with what it means; `config.reading` fills them from YAML."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, PlainValidator, model_validator

from jaxdata.config.curriculum import Curriculum, Epochs, OnExhaustion, check_budgets
from jaxdata.feed.schedule import check_batch_size
from jaxdata.train.settings import Count, Settings, TrainSettings, whole

__all__ = ["AmendmentSettings", "Config", "LoaderSettings", "PackSettings", "SourceSettings"]


RowPair = Annotated[list[int], Field(min_length=2, max_length=2)]


def _batch_size(value: object) -> int | list[tuple[int, int]]:
    """A number or a ramp, refused as the loader would refuse it."""
    size = whole(value)
    return size if isinstance(size, int) and size > 0 else check_batch_size(size)


BatchSize = Annotated[int | list[tuple[int, int]], PlainValidator(_batch_size)]


class PackSettings(Settings):
    """How documents become rows; the arguments of `jaxdata.pack`."""

    seq_len: Count = Field(default=2048, description="slots in a row")
    strategy: Literal["best_fit", "concat", "crop", "pad"] = Field(
        default="best_fit", description="how windows share rows"
    )
    overlap: int = Field(default=0, ge=0, description="tokens that a window repeats, without loss")
    positions: Literal["segment", "row"] = Field(
        default="segment", description="where positions start again at 0"
    )
    max_segments: Count | None = Field(
        default=None, description="most segments in a row; null: any"
    )
    block: Count = Field(default=65_536, description="documents that are packed together")
    shuffle_run: Count = Field(
        default=1, description="neighbouring documents that are dealt together, for slow disks"
    )


class LoaderSettings(Settings):
    """How rows become batches; the arguments of `jaxdata.Loader`."""

    batch_size: BatchSize = Field(
        default=32,
        description="rows in a global batch, over all hosts; or sizes by the row they begin at: "
        "[[0, 256], [100_000, 512]]",
    )
    num_workers: int = Field(
        default=0, ge=0, description="reading processes; 0: a thread of this one"
    )
    prefetch: int = Field(default=2, ge=0, description="batches prepared ahead")
    drop_remainder: bool = Field(default=False, description="leave out a last, incomplete batch")
    expand: Literal["host", "device"] = Field(
        default="host", description="where batches are laid out; device: an eighth is sent there"
    )
    layout: Literal["jaxdata", "maxtext", "hf", "megatron"] = Field(
        default="jaxdata", description="whose names and masks a batch has"
    )
    skip_rows: list[RowPair] = Field(
        default_factory=list,
        description="rows that are never delivered, as [first, stop]: [[48_000, 48_800]]",
    )
    extras: list[Literal["source", "document"]] = Field(
        default_factory=list,
        description="arrays that say of each slot which source and document it is of",
    )

    @property
    def first_batch_size(self) -> int:
        """The batch size at row 0."""
        sizes = self.batch_size
        return sizes if isinstance(sizes, int) else sizes[0][1]


class SourceSettings(Settings):
    """One source of several datasets; its dataset alone may stand for it."""

    dataset: str = Field(description="where it is, as in `dataset`")
    source: str | None = Field(
        default=None, description="its name there; null: the same name, or the only one there"
    )
    eod_id: int | None = Field(
        default=None, description="the token that ends documents, of nanogpt:; -1: none does"
    )

    @model_validator(mode="before")
    @classmethod
    def _dataset_alone(cls, value: object) -> object:
        return {"dataset": value} if isinstance(value, str) else value


class AmendmentSettings(Settings):
    """A change of the recipe from a row of the run on: what is not given stays as it was."""

    at_row: int | None = Field(default=None, ge=0, description="the first row that changes; or:")
    at_step: int | None = Field(
        default=None, ge=0, description="likewise the step, by the batch sizes of this config"
    )
    curriculum: Curriculum = Field(
        default=None, description="the phases that follow; null: what is left of those before"
    )
    epochs: Epochs = Field(
        default_factory=dict, description="how often a source may be read in the whole run"
    )
    on_exhaustion: OnExhaustion | None = Field(
        default=None, description="what happens from here on when a source runs dry"
    )
    pack: PackSettings | None = Field(
        default=None, description="how documents that were not read yet become rows, as in pack"
    )

    @model_validator(mode="after")
    def _somewhere(self) -> AmendmentSettings:
        if (self.at_row is None) == (self.at_step is None):
            raise ValueError("an amendment says where: at_row or at_step, one of them")
        if not self.model_fields_set - {"at_row", "at_step"}:
            raise ValueError("an amendment says what: curriculum, epochs, on_exhaustion or pack")
        check_budgets(self.curriculum)
        return self


class Config(Settings):
    """Everything that says which row is the i-th of training, and what is done with it.

    Without a curriculum, every source is read once, weights as their trained tokens are.
    """

    dataset: str | None = Field(
        default=None,
        description="folder or URL of a converted dataset; or another tool's: megatron:PREFIX, "
        "gpts:PREFIX, nanogpt:FILE, datatrove:FILE",
    )
    sources: dict[str, SourceSettings] | None = Field(
        default=None,
        min_length=1,
        description="sources of several datasets, instead of `dataset`: "
        "{web: data/mine, old: megatron:PREFIX}",
    )
    generations: dict[str, int] = Field(
        default_factory=dict,
        description="of sources that documents were added to since the run began: how often they "
        "had been then, {web: 0}",
    )
    tokenizer: str | None = Field(
        default=None, description="what made the tokens of other tools' data, where text is asked"
    )
    seed: int = Field(default=0, ge=0, description="root of every random order")
    split: str = Field(default="train", description="the split that the curriculum reads")
    pack: PackSettings = PackSettings()
    curriculum: Curriculum = Field(
        default=None,
        description="phases, one after the other; or weights of one phase without end, like "
        "proportional; null: every source once",
    )
    epochs: Epochs = Field(
        default_factory=dict, description="how often a source may be read, where not once"
    )
    on_exhaustion: OnExhaustion = Field(
        default="refuse", description="what happens when the phases ask for more than a source has"
    )
    amendments: list[AmendmentSettings] = Field(
        default_factory=list, description="changes of the recipe on the way, in order"
    )
    loader: LoaderSettings = LoaderSettings()
    allow_budget_mismatch: bool = Field(
        default=False,
        description="whether `jaxdata validate` lets train.steps end before the curriculum does",
    )
    eval_split: str = Field(
        default="val", description="the split a model is scored on: each source of it once"
    )
    eval_tokens: Count | None = Field(
        default=None, description="most tokens to score, the same every time; null: all"
    )
    eval_batch_size: Count | None = Field(
        default=None, description="rows in a batch to score; null: the loader's first"
    )
    train: TrainSettings = TrainSettings()

    @model_validator(mode="after")
    def _some_data(self) -> Config:
        if self.dataset is None and self.sources is None:
            raise ValueError(
                "dataset is missing; it has to be given (or, of several datasets, "
                "sources: {name: dataset, …})"
            )
        if self.dataset is not None and self.sources is not None:
            raise ValueError("dataset and sources are both given: keep one")
        return self

    @model_validator(mode="after")
    def _budgets(self) -> Config:
        check_budgets(self.curriculum)
        return self
