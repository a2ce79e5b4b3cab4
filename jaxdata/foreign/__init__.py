"""Rows and documents as other tools' files, and the parameters of Cerebras' preprocessing."""

from __future__ import annotations

from jaxdata.base.lazy import resolver

__getattr__ = resolver(__name__)
