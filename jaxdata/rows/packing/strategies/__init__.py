"""The registry of packing strategies: pure functions from document lengths to a plan of rows.

What is registered here can be chosen by `pack`, in configs and on the command line, and is
compared by `jaxdata inspect`. Each strategy is a file of its own.
"""

from __future__ import annotations

from jaxdata.rows.packing.block_plan import Strategy, StrategyName
from jaxdata.rows.packing.strategies.best_fit import BEST_FIT
from jaxdata.rows.packing.strategies.concat import CONCAT
from jaxdata.rows.packing.strategies.crop import CROP
from jaxdata.rows.packing.strategies.pad import PAD

STRATEGIES: dict[StrategyName, Strategy] = {
    each.name: each for each in (PAD, CONCAT, CROP, BEST_FIT)
}
"""by name, in the order of comparisons"""


def evaluation_strategy(name: StrategyName) -> StrategyName:
    """The strategy that evaluation uses for `name`: one that leaves no token out of the measure."""
    if name in STRATEGIES and not STRATEGIES[name].keeps_all:
        return BEST_FIT.name
    return name
