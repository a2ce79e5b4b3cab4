"""What people look at: datasets, documents, rows, plans and runs, as tables, JSON and pages."""

from __future__ import annotations

from jaxdata.base.lazy import resolver

__getattr__ = resolver(__name__)
