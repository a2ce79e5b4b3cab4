"""Out to other tools, and over from them: rows and documents as files, Cerebras' parameters."""

from __future__ import annotations

from jaxdata.base.lazy import resolver

__getattr__ = resolver(__name__)
