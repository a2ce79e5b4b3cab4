"""Raw text to an indexed dataset, once.

A conversion is cut into units of work; each writes a shard and then, as its commit, a receipt.
From the receipts of all units come the index and, last, the manifest's entry. So a conversion that
was killed goes on where it stopped, and its bytes depend neither on that nor on the workers.
"""

from __future__ import annotations

from jaxdata.convert.conversion import convert
from jaxdata.convert.documents import texts
from jaxdata.convert.report import ConversionReport

__all__ = ["ConversionReport", "convert", "texts"]
