"""What reading a run from far away will cost, from its plan alone (`jaxdata plan --hosts N`).

Rows, or a sample of them, are traced to the bytes that each host reads in each step; these are
counted as cached pages and as exact ranges.
"""

from jaxdata.look.read_costs.cluster import Cluster
from jaxdata.look.read_costs.cost_report import LEGEND, as_json, cost_tables
from jaxdata.look.read_costs.cost_warnings import dear, too_small
from jaxdata.look.read_costs.costs import Costs, ReadCosts, SourceCosts, Way
from jaxdata.look.read_costs.estimate import read_costs

__all__ = [
    "LEGEND",
    "Cluster",
    "Costs",
    "ReadCosts",
    "SourceCosts",
    "Way",
    "as_json",
    "cost_tables",
    "dear",
    "read_costs",
    "too_small",
]
