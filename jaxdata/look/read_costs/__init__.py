"""What reading a run from far away will cost, from its plan alone (`jaxdata plan --hosts N`).

cluster        hosts, their batch, and how they fetch
batch_hosts    the step of a row, and the host that reads it
touched        the bytes that rows are read from
followed       which rows are followed: all, or those of some segments
fetches        requests for bytes: cached pages, or exact ranges merged in each batch
scattered      an estimate where single documents are dealt
estimate       the figures of a run
costs          the figures themselves
cost_warnings  what is dear, and why; a cache that is too small
cost_report    the figures as tables and as JSON
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
