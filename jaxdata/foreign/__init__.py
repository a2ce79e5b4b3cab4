"""Parameters and statistics of other tools: `cerebras`, `data_params`, `short_rows`."""

from __future__ import annotations

from jaxdata.base.lazy import resolver

__getattr__ = resolver(__name__)
