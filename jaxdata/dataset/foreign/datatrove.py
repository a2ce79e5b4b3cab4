"""datatrove's tokenized files: `X.ds`, tokens end to end, `X.ds.index`, and maybe `X.ds.loss`.

The index is the end of each document in tokens, u64; a token has 2 or 4 bytes, which follows from
the sizes; the loss file has a byte for every token: 1 if it has loss as a target.
"""

from __future__ import annotations

import numpy as np

from jaxdata.dataset.foreign.contract import (
    FlatPart,
    ForeignFormat,
    ReadOptions,
    check_file,
    check_size,
    damaged,
    gaps,
    numbers,
    open_map,
)
from jaxdata.storage.objects import AnyPath, any_path


def _read(path: AnyPath, _: ReadOptions) -> FlatPart:
    index, loss = any_path(f"{path}.index"), any_path(f"{path}.loss")
    check_file(path, "datatrove:PATH is a .ds file, or a folder of them")
    data = open_map(index, f"{path.name} cannot be split into documents without it")
    if len(data) % 8:
        raise damaged(index, f"{len(data)} bytes", "8 for each document: it may be truncated")
    ends = np.append(np.int64(0), numbers(data, "<i8", 0, len(data) // 8))
    lengths = gaps(
        ends, lambda at: damaged(index, f"document {at} ending before it begins", "rising ends")
    )
    total, size = int(ends[-1]), path.stat().st_size
    item = 4 if size == 4 * total else 2
    if size != item * total:
        raise damaged(
            path, f"{size:,} bytes", f"2 or 4 for each of {total:,} tokens, says {index.name}"
        )
    masked = loss.is_file()
    if masked:
        check_size(loss, total, f"one for each token of {path.name}")
    dtype = np.dtype("<u2" if item == 2 else "<u4")
    return FlatPart(path, dtype, lengths, ends[:-1], item, mask=loss if masked else None)


FORMAT = ForeignFormat("datatrove", suffix=".ds", read=_read)
