"""The format, and documents in it: our datasets, views of them, and other tools' files.

Nothing outside this room knows how bytes are arranged. Lengths alone are enough to plan; tokens are
read by ranges.

Two classes resolve when `Documents.filter` and `Documents.map` first use them: they are documents.
"""

from typing import TYPE_CHECKING

from jaxdata.base.lazy import resolver

if TYPE_CHECKING:
    from jaxdata.dataset.functions import FilteredDocuments, MappedDocuments

__all__ = ["FilteredDocuments", "MappedDocuments"]

_PUBLIC = dict.fromkeys(__all__, "jaxdata.dataset.functions")

__getattr__ = resolver(__name__, _PUBLIC)
