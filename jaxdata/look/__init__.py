"""What people look at: a dataset, a row, a plan, a run.

Each file makes plain values first, for `--json`, and tables of them for a terminal.
"""

from jaxdata.base.lazy import resolver

__getattr__ = resolver(__name__)
