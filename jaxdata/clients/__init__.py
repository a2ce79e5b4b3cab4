"""Other people's trainers: the shortest honest way into each, imported when it is used."""

from __future__ import annotations

from jaxdata.base.lazy import resolver

__getattr__ = resolver(__name__)
