"""Other tools' parameters and statistics; documents and rows written for them."""

from __future__ import annotations

from jaxdata.base.lazy import resolver

__getattr__ = resolver(__name__)
