"""Raw text to an indexed dataset, once.

A conversion is cut into units of work. Each unit writes its shards and then, as its commit, a
receipt. The index and, last, the manifest's entry are made from all receipts. So a conversion that
was killed resumes where it stopped, and its bytes depend neither on that nor on the workers.

In the order in which data passes:

- `api`: the functions; `options`, `parameters`: what a user asks for, checked; `kept/`: what is
  kept beside tokens.
- `inputs/`: files found, cut into units, and read as records.
- `compatibility`, `append`: whether it fits the dataset that exists.
- `conversion`, `conversion_run`, `job`, `encoder_use`, `engines/`: what there is to do, units
  handed to workers, what encodes there.
- `worker`, `unit_reader`, `transform`, `filters`, `splits`, `document_batch`: a unit in a worker.
- `tasks/`, `chat/`: records to tokens and loss masks.
- `outputs`, `receipts`: shards, and the receipt that commits a unit.
- `merged_receipts`, `statistics`, `publish`: receipts to index, manifest and report.

Public names resolve when first used: a worker starts in a third less time without what only its
parent needs.
"""

from __future__ import annotations

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
