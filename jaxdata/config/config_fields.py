"""The fields of a config, each with its description; `config_reader` fills them from YAML."""

from __future__ import annotations

from typing import Annotated

from pydantic import AfterValidator, BeforeValidator, Discriminator, Field, Tag, model_validator

from jaxdata.base.errors import ConfigError
from jaxdata.base.settings import Count, Settings, setting
from jaxdata.config.storage_section import StorageSection
from jaxdata.config.train_section import TrainSettings
from jaxdata.feed.settings import LoaderSection
from jaxdata.rows.mixing.phases import OnExhaustion, Phase, check_phases, check_weights
from jaxdata.rows.packing.settings import PackSection

TAGS = ("weights as numbers", "weights by a rule")
"""Names of the two forms of `mix`; pydantic puts them into error locations."""


def _rule(rule: str) -> str:
    check_weights(rule)
    return rule


def _form(value: object) -> str:
    return TAGS[isinstance(value, str)]


Mix = Annotated[
    Annotated[dict[str, float], Field(min_length=1), Tag(TAGS[0])]
    | Annotated[str, AfterValidator(_rule), Tag(TAGS[1])],
    Discriminator(_form),
]


class PhaseSection(Settings):
    """A phase of training, with one set of weights."""

    tokens: Count | None = setting(None, "budget in slots, rounded up to whole rows")
    rows: Count | None = setting(None, "budget in rows, instead of tokens")
    steps: Count | None = setting(None, "budget in steps of batch_size rows", advanced=True)
    batch_size: Count | None = setting(None, "rows of a step, with steps", advanced=True)
    mix: Mix = Field(
        description="weight of each source, in any unit; or proportional: by their sizes; or "
        "size**0.5: by a power of their sizes"
    )

    @model_validator(mode="after")
    def _makes_sense(self) -> PhaseSection:
        self.phase()
        return self

    def phase(self) -> Phase:
        """The same as an argument of `jaxdata.mix`."""
        return Phase(self.tokens, self.rows, self.mix, self.steps, self.batch_size)


def _phases(value: object) -> object:
    """A single phase needs no list around it, and a rule no phase."""
    phase = {"mix": value} if isinstance(value, str) else value
    return [phase] if isinstance(phase, dict) else phase


def _budgeted(curriculum: list[PhaseSection]) -> list[PhaseSection]:
    """Phases of which all but the last have a budget."""
    check_phases([phase.phase() for phase in curriculum])
    return curriculum


Curriculum = Annotated[
    Annotated[list[PhaseSection], Field(min_length=1), AfterValidator(_budgeted)] | None,
    BeforeValidator(_phases, json_schema_input_type=list[PhaseSection] | PhaseSection | str | None),
]
Epochs = dict[str, Annotated[float, Field(ge=0, allow_inf_nan=False)]]


class SourceSection(Settings):
    """One source of several datasets; its dataset alone is enough."""

    dataset: str = Field(description="folder, URL or other tool's data, as in `dataset`")
    source: str | None = setting(None, "its name there; null: the same name, or the only source")
    eod_id: int | None = setting(
        None, "the token that ends documents, for nanogpt:; -1: none", advanced=True
    )
    documents: str | None = setting(None, "the view of it to train on; null: as `documents` says")
    transform: str | None = setting(
        None,
        "module:function, which gets its documents (of each split, named in docs.name) "
        "and returns those to read: docs.filter(f).map(g)",
    )


def _dataset_alone(value: object) -> object:
    return {"dataset": value} if isinstance(value, str) else value


Source = Annotated[
    SourceSection, BeforeValidator(_dataset_alone, json_schema_input_type=SourceSection | str)
]


class AmendmentSection(Settings):
    """A change of the recipe from a row of the run on; fields not given keep their values."""

    at_row: int | None = Field(default=None, ge=0, description="the first row that changes")
    at_step: int | None = setting(
        None, "the first step that changes, by this config's batch sizes", ge=0, advanced=True
    )
    curriculum: Curriculum = setting(
        None, "the phases that follow; null: the rest of the previous phases"
    )
    mix: Mix | None = setting(
        None, "weights for the rest of the phase under way, as loader.reweigh sets them"
    )
    epochs: Epochs = setting(dict, "maximum epochs per source in the whole run")
    on_exhaustion: OnExhaustion | None = setting(None, "new behaviour when a source runs dry")
    pack: PackSection | None = setting(None, "packing of the documents not yet read, as in `pack`")

    @model_validator(mode="after")
    def _somewhere(self) -> AmendmentSection:
        if (self.at_row is None) == (self.at_step is None):
            raise ValueError("an amendment needs its position: at_row or at_step, one of them")
        if not self.model_fields_set - {"at_row", "at_step"}:
            raise ValueError(
                "an amendment needs a change: curriculum, epochs, mix, on_exhaustion, pack"
            )
        return self


class Config(Settings):
    """Everything that determines the rows of training, and their use.

    Without a curriculum, every source is read once, weighted by its trained tokens.
    """

    dataset: str | None = setting(
        None,
        "folder or URL of a converted dataset; or another tool's: megatron:PREFIX, "
        "gpts:PREFIX, nanogpt:FILE, datatrove:FILE",
    )
    sources: dict[str, Source] | None = Field(
        default=None,
        min_length=1,
        description="sources of several datasets, instead of `dataset`: "
        "{web: data/mine, old: megatron:PREFIX}",
    )
    generations: dict[str, int] = setting(
        dict,
        "for sources appended to, or deleted from, since the run began: how often that was done "
        "before, {web: 0}",
        advanced=True,
    )
    tokenizer: str | None = setting(
        None, "tokenizer of other tools' data, to decode its text", advanced=True
    )
    seed: int = Field(default=0, ge=0, description="root of every random order")
    split: str = setting("train", "the training split", advanced=True)
    documents: str | dict[str, str] | None = setting(
        None,
        "the view to train on, as `jaxdata dedup` makes them: of every source that is "
        "trained, or of some, {web: d1}; null: all documents",
    )
    pack: PackSection = PackSection()
    curriculum: Curriculum = setting(
        None,
        "phases, in order; or the weights of a single endless phase, like "
        "proportional; null: every source once",
    )
    epochs: Epochs = setting(dict, "maximum epochs per source, fractions allowed; default 1")
    on_exhaustion: OnExhaustion = setting(
        "refuse", "behaviour when the phases need more than a source has"
    )
    amendments: list[AmendmentSection] = setting(
        list, "changes of the recipe during the run; those at one row add up"
    )
    loader: LoaderSection = LoaderSection()
    allow_budget_mismatch: bool = setting(
        False,
        "whether `jaxdata preview` accepts train.steps that end before the curriculum",
        advanced=True,
    )
    eval_split: str | None = setting(
        "val", "the split used for evaluation: each of its sources once; null: none"
    )
    eval: dict[str, str] | None = Field(
        default=None,
        min_length=1,
        description="sets that are scored one by one, splits or sources of them, instead of "
        "`eval_split`: {web: val/web, code: val/code}",
    )
    eval_tokens: Count | None = setting(
        None, "maximum tokens of each set to evaluate, always the same ones; null: all"
    )
    storage: StorageSection = StorageSection()
    train: TrainSettings = TrainSettings()

    @property
    def scored(self) -> dict[str, str]:
        """What is scored: the split, or a source of it, of each set by its name."""
        if self.eval is not None:
            return self.eval
        return {} if self.eval_split is None else {self.eval_split: self.eval_split}

    @property
    def scored_split(self) -> str:
        """What to score on, for a trainer that always has one set."""
        if len(self.scored) == 1:
            return next(iter(self.scored.values()))
        said = f"eval names {', '.join(self.eval)}" if self.eval else "eval_split is null"
        raise ConfigError(f"{said}, and this trainer scores on one set: name one")

    @model_validator(mode="after")
    def _one_way_to_score(self) -> Config:
        if self.eval is not None and "eval_split" in self.model_fields_set:
            raise ValueError(
                f"eval_split={self.eval_split!r} beside eval: give one of them; eval names sets "
                "that are scored one by one"
            )
        return self

    @model_validator(mode="after")
    def _some_data(self) -> Config:
        if self.dataset is None and self.sources is None:
            raise ValueError(
                "dataset is missing: it is required (or, for several datasets, "
                "sources: {name: dataset, …})"
            )
        if self.dataset is not None and self.sources is not None:
            raise ValueError("dataset and sources exclude each other: keep one")
        return self
