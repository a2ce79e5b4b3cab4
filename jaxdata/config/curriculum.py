"""The fields of a config that choose sources: phases, weights, epochs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

from pydantic import AfterValidator, BeforeValidator, Discriminator, Field, Tag, model_validator

from jaxdata.mixing.phases import Phase, check_phases
from jaxdata.mixing.weights import check_weights
from jaxdata.settings import Count, Settings

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

    tokens: Count | None = Field(
        default=None, description="budget in slots, rounded up to whole rows"
    )
    rows: Count | None = Field(default=None, description="budget in rows, instead of tokens")
    steps: Count | None = Field(default=None, description="budget in steps of batch_size rows")
    batch_size: Count | None = Field(default=None, description="rows of a step, with steps")
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


Curriculum = Annotated[
    Annotated[list[PhaseSection], Field(min_length=1)] | None,
    BeforeValidator(_phases, json_schema_input_type=list[PhaseSection] | PhaseSection | str | None),
]
Epochs = dict[str, Annotated[float, Field(ge=0, allow_inf_nan=False)]]


def check_budgets(curriculum: Sequence[PhaseSection] | None) -> None:
    """Reject a phase without a budget that is not the last."""
    if curriculum is not None:
        check_phases([phase.phase() for phase in curriculum])
