"""Parameters and statistics of other tools: `cerebras`, `data_params`, `short_rows`."""

from __future__ import annotations

from jaxdata.lazy import resolver

__getattr__ = resolver(__name__)
