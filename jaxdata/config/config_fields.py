"""The fields of a config, each with its description; `config_reader` fills them from YAML.

The section `storage` says where buckets are and what this host keeps of them; never a secret. There
the environment wins: a config is shared between machines, and a variable is of this one. What a
config says becomes a variable of the process, so worker processes have it, too.
"""

from __future__ import annotations

import os
import re
from operator import attrgetter
from typing import Annotated, Literal
from urllib.parse import urlsplit

from pydantic import AfterValidator, BeforeValidator, Discriminator, Field, Tag, model_validator

from jaxdata.base.errors import ConfigError, warn_once
from jaxdata.base.settings import Count, Settings, setting
from jaxdata.feed.settings import LoaderSection
from jaxdata.rows.mixing.phases import OnExhaustion, Phase, check_phases, check_weights
from jaxdata.rows.packing.settings import PackSection
from jaxdata.storage import local_path
from jaxdata.storage.credentials import ENDPOINTS

_SECRET = re.compile(r"secret|password|token|private|credential$|(^|_)key(_id)?$")


def _no_secret_in(url: str) -> str:
    """The URL of a service."""
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ValueError("expected the URL of a service, like https://minio.example:9000")
    if parts.username or parts.password:
        raise ValueError("a config holds no secrets: write the URL without what is before the @")
    return url


Endpoint = Annotated[str, AfterValidator(_no_secret_in)]


class _WithoutSecrets(Settings):
    """A section that refuses secrets by their names, and does not repeat them."""

    @model_validator(mode="before")
    @classmethod
    def _refuse_secrets(cls, value: object) -> object:
        names = [str(name) for name in value] if isinstance(value, dict) else []
        for name in names:
            if name not in cls.model_fields and _SECRET.search(name.lower()):
                raise ValueError(
                    f"{name!r} is a secret, and a config holds none. For s3://, set "
                    "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY in the environment, or name a "
                    "profile of ~/.aws/credentials (profile: mine); for gs://, name a file "
                    "(credentials_file: PATH)"
                )
        return value


class S3Section(_WithoutSecrets):
    """What `s3://` means."""

    endpoint: Endpoint | None = setting(
        None, "URL of a service other than Amazon's: MinIO, R2, Ceph"
    )
    region: str | None = setting(None, "region of that service; us-east-1", advanced=True)
    profile: str | None = setting(None, "profile of ~/.aws/credentials")
    anonymous: bool = setting(False, "read a public bucket without credentials", advanced=True)

    @model_validator(mode="after")
    def _one_way(self) -> S3Section:
        if self.anonymous and self.profile is not None:
            raise ValueError("profile and anonymous exclude each other: keep one")
        return self


class GsSection(_WithoutSecrets):
    """What `gs://` means."""

    endpoint: Endpoint | None = setting(None, "URL of another service", advanced=True)
    credentials_file: str | None = setting(
        None, "file of the account, as gcloud or the console writes it", advanced=True
    )


class CacheSection(Settings):
    """What this host keeps of buckets."""

    folder: str | None = setting(None, "the folder; ~/.cache/jaxdata")
    bytes: Count | None = setting(None, "limit of all pages; a tenth of the free disk")


class StorageSection(_WithoutSecrets):
    """Buckets and the cache; variables of the environment win over each field."""

    s3: S3Section = S3Section()
    gs: GsSection = setting(GsSection(), "what `gs://` means", advanced=True)
    cache: CacheSection = CacheSection()
    seconds: float | None = setting(
        None, "how long a bucket may fail before a run ends; 600", gt=0, advanced=True
    )


VARIABLES: dict[str, tuple[str, ...]] = {
    "s3.endpoint": ENDPOINTS,
    "s3.region": ("AWS_REGION", "AWS_DEFAULT_REGION"),
    "s3.profile": ("AWS_PROFILE", "AWS_ACCESS_KEY_ID", "JAXDATA_S3_ANONYMOUS"),
    "s3.anonymous": ("JAXDATA_S3_ANONYMOUS", "AWS_ACCESS_KEY_ID", "AWS_PROFILE"),
    "gs.endpoint": ("TENSORSTORE_GCS_HTTP_URL",),
    "gs.credentials_file": ("GOOGLE_APPLICATION_CREDENTIALS",),
    "cache.folder": ("JAXDATA_CACHE",),
    "cache.bytes": ("JAXDATA_CACHE_BYTES",),
    "seconds": ("JAXDATA_STORAGE_SECONDS",),
}
"""field -> the variable that it becomes, and others that say the same, and win as well"""
_ours: dict[str, str] = {}
"""variables that a config set"""


def use_storage(storage: StorageSection) -> None:
    """Have this process, and processes that it starts, open buckets as a config says.

    A config that says nothing changes nothing; of several, the last counts.
    """
    given = {field: attrgetter(field)(storage) for field in VARIABLES}
    wanted = {name: "1" if it is True else str(it) for name, it in given.items() if it}
    if not wanted:
        return
    names = {VARIABLES[field][0] for field in wanted}
    for name in [each for each in _ours if _is_ours(each) and each not in names]:
        del os.environ[name]
    for field, text in wanted.items():
        name, winner = VARIABLES[field][0], variable_of(field)
        if winner is None:
            _ours[name] = os.environ[name] = text
        elif os.environ[winner] != text:
            warn_once(f"storage.{field} of the config is not used: {winner} is set, which wins")


def variable_of(field: str) -> str | None:
    """The variable of the environment that wins over a field (`"s3.region"`), if one does."""
    names = VARIABLES.get(field, ())
    return next((each for each in names if os.environ.get(each) and not _is_ours(each)), None)


def _is_ours(name: str) -> bool:
    return name in _ours and os.environ.get(name) == _ours[name]


def _folder(output: str) -> str:
    local_path(output, "train into a folder, such as a mounted bucket")
    return output


class ModelSettings(Settings):
    """The shape of the decoder-only transformer."""

    layers: int = setting(4, "number of transformer blocks", ge=1)
    width: int = setting(128, "size of the residual stream", ge=2)
    heads: int = setting(4, "attention heads; width / heads must be even", ge=1)
    hidden: int | None = setting(
        None, "width of the gated MLP; null: 8/3 of width, rounded up to 32", ge=1, advanced=True
    )
    tied: bool = setting(True, "whether the output head is the embedding table", advanced=True)
    rope_base: float = setting(10_000.0, "slowest wavelength of the positions", gt=1, advanced=True)
    dtype: Literal["float32", "bfloat16"] = setting(
        "float32", "arithmetic of the blocks; params and loss are always float32"
    )
    remat: bool = setting(
        False, "recompute blocks in the backward pass: less memory, more time", advanced=True
    )

    @model_validator(mode="after")
    def _heads_divide(self) -> ModelSettings:
        if self.width % (2 * self.heads):
            shape = f"width {self.width} with heads {self.heads}"
            raise ValueError(f"{shape}: width / heads must be an even number")
        return self

    @property
    def mlp_width(self) -> int:
        """Width of the gated MLP, with the default computed."""
        return self.hidden or -(-8 * self.width // 3 // 32) * 32


class OptimizerSettings(Settings):
    """AdamW with a linear warm-up and a cosine decay."""

    learning_rate: float = setting(1e-3, "the peak, reached after the warm-up", gt=0)
    warmup_steps: int = setting(20, "steps from 0 up to the peak", ge=0)
    final_fraction: float = setting(
        0.1, "last rate, as a fraction of the peak", ge=0, le=1, advanced=True
    )
    weight_decay: float = setting(0.1, "decay of matrices; norms have none", ge=0)
    beta1: float = setting(0.9, "decay rate of the first moment", ge=0, lt=1, advanced=True)
    beta2: float = setting(0.95, "decay rate of the second moment", ge=0, lt=1, advanced=True)
    clip_norm: float = setting(1.0, "maximum global norm of the gradient", gt=0, advanced=True)


class TrainSettings(Settings):
    """A training run."""

    steps: Count | None = setting(None, "total number of steps; null: until the data ends")
    model: ModelSettings = ModelSettings()
    optimizer: OptimizerSettings = OptimizerSettings()
    output: Annotated[str, AfterValidator(_folder)] = setting(
        "runs/train", "folder of the log and the checkpoints"
    )
    log_every: int = setting(10, "steps between lines on the terminal", ge=1)
    eval_every: int = setting(0, "steps between evaluations; 0: only at the end", ge=0)
    checkpoint_every: int = setting(100, "steps between checkpoints", ge=1)
    keep: int = setting(3, "number of checkpoints to keep", ge=1, advanced=True)
    deterministic: bool = setting(
        True, "deterministic XLA operations; slower on GPUs", advanced=True
    )


TAGS = ("weights as numbers", "weights by a rule")
"""Names of the two forms of `mix`; pydantic puts them into error locations."""


def _rule(rule: str) -> str:
    check_weights(rule)
    return rule


Mix = Annotated[
    Annotated[dict[str, float], Field(min_length=1), Tag(TAGS[0])]
    | Annotated[str, AfterValidator(_rule), Tag(TAGS[1])],
    Discriminator(lambda value: TAGS[isinstance(value, str)]),
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
    def _one_way(self) -> Config:
        if self.eval is not None and "eval_split" in self.model_fields_set:
            raise ValueError(
                f"eval_split={self.eval_split!r} beside eval: give one of them; eval names sets "
                "that are scored one by one"
            )
        if self.dataset is None and self.sources is None:
            raise ValueError(
                "dataset is missing: it is required (or, for several datasets, "
                "sources: {name: dataset, …})"
            )
        if self.dataset is not None and self.sources is not None:
            raise ValueError("dataset and sources exclude each other: keep one")
        return self
