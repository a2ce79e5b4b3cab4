"""Parameters and manifests of conversions that never were."""

from collections.abc import Mapping
from typing import Any

from jaxdata import tokenizers
from jaxdata.converter.inputs.files import FileType, InputFile
from jaxdata.converter.parameters import Parameters, make_parameters
from jaxdata.dataset.manifest import Manifest, SourceEntry

BYTES = tokenizers.load("bytes", bos=2)
JSON = FileType("jsonl")


def input_file(name: str, kind: FileType = JSON, digest: str = "", size: int = 10) -> InputFile:
    return InputFile("/data", name, size, kind, digest or f"digest of {name}", 1)


def parameters(*names: str, update: Mapping[str, Any] | None = None, **options: Any) -> Parameters:
    """Those of inputs of these names."""
    made = make_parameters([input_file(name) for name in names], BYTES, options)
    return made.model_copy(update=dict(update or {}))


def source(made: Parameters, *, documents: int = 3, **fields: Any) -> SourceEntry:
    """A finished source of all inputs of some parameters."""
    given: dict[str, Any] = {
        "documents": documents,
        "tokens": 10 * documents,
        "shards": [],
        "fingerprint": f"{documents} documents",
        "inputs": [*made.inputs],
        "parameters": made.of_source(),
        "statistics": {},
        "checksums": {},
    }
    return SourceEntry(**given | fields)


def manifest(made: Parameters, **sources: SourceEntry) -> Manifest:
    """A dataset of sources of the split `train`, which has no files."""
    return Manifest.model_construct(
        tokenizer=made.tokenizer,
        dtype=made.dtype,
        record_tokens=made.record_tokens,
        sources={f"train/{name}": entry for name, entry in sources.items()},
    )
