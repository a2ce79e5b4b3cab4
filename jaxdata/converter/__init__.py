"""Raw text to an indexed dataset, once.

A conversion is cut into units of work. Each unit writes its shards and then, as its commit, a
receipt. The index and, last, the manifest's entry are made from all receipts. So a conversion that
was killed resumes where it stopped, and its bytes depend neither on that nor on the workers.

Public names resolve when first used: a worker starts in a third less time without what only its
parent needs.
"""

from typing import TYPE_CHECKING

from jaxdata.base.lazy import resolver

if TYPE_CHECKING:
    from jaxdata.converter.conversion import convert, texts
    from jaxdata.converter.parameters import Options
    from jaxdata.converter.statistics import ConversionReport

__all__ = ["ConversionReport", "Options", "convert", "texts"]

_PUBLIC = {
    "ConversionReport": "jaxdata.converter.statistics",
    "Options": "jaxdata.converter.parameters",
    "convert": "jaxdata.converter.conversion",
    "texts": "jaxdata.converter.conversion",
}


__getattr__ = resolver(__name__, _PUBLIC)
