"""What is asked of a mixture: phases, epochs, and what happens when a source runs dry."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from jaxdata.errors import InputError
from jaxdata.mixing.phases import Phase, check_epochs, check_names, check_phases
from jaxdata.mixing.weights import check_weigh_by, exact


@dataclass(frozen=True)
class Recipe:
    """The request for a mixture."""

    phases: Sequence[Phase]
    epochs: Mapping[str, float]
    """most epochs of a source; 1 by default"""
    on_exhaustion: str
    weigh_by: str = "tokens"
    """what weights are shares of, as in `WeighBy`"""

    def check(self, names: Sequence[str]) -> None:
        """Refuse a recipe that is invalid for sources of these names."""
        check_weigh_by(self.weigh_by)
        check_phases(self.phases)
        for number, phase in enumerate(self.phases):
            if not isinstance(phase.weights, str):
                check_names(names, phase.weights, f"phase {number} weighs")
        check_names(names, self.epochs, "epochs names")
        check_epochs(self.epochs)

    def epochs_of(self, name: str) -> Fraction:
        """Most epochs of a source."""
        return exact(self.epochs.get(name, 1))

    def weighed(self, sizes: Mapping[str, int]) -> list[Phase]:
        """The phases with a number for each source, whose epochs have `sizes` tokens."""
        phases = [phase.weighed(sizes) for phase in self.phases]
        for name, size in sizes.items():
            if not size and any(phase.weight(name) for phase in phases):
                lacks = "rows to train on" if self.weigh_by == "tokens" else "target with loss"
                raise InputError(f"source {name!r} has no {lacks}, but a phase weighs it")
        return phases


def size_of(table: Any, weigh_by: str) -> int:
    """Tokens of an epoch of a packed source, as weights count them."""
    size: int = table.loss_tokens if weigh_by == "loss_tokens" else table.summary.trained_tokens
    return size
