"""datatrove's tokenized files: `X.ds`, tokens end to end, `X.ds.index`, and maybe `X.ds.loss`.

The index is the end of each document in tokens, u64; a token has 2 or 4 bytes, which follows from
the sizes; the loss file has a byte for every token: 1 if it has loss as a target.
"""

from pathlib import Path

import numpy as np

from jaxdata.dataset.foreign import contract
from jaxdata.dataset.foreign.contract import FlatPart, ForeignFormat, ReadOptions


def _read(path: Path, _: ReadOptions) -> FlatPart:
    index, loss = Path(f"{path}.index"), Path(f"{path}.loss")
    contract.check_file(path, "datatrove:PATH is a .ds file, or a folder of them")
    data = contract.open_map(index, f"{path.name} cannot be split into documents without it")
    if len(data) % 8:
        raise contract.damaged(index, f"{len(data)} bytes", "8 for each document")
    edges = np.append(np.int64(0), np.frombuffer(data, "<i8"))
    lengths, total = contract.gaps(edges, index), int(edges[-1])
    item = 4 if path.stat().st_size == 4 * total else 2
    contract.check_size(path, item * total, f"2 or 4 for each of {total:,} tokens of {index.name}")
    masked = loss.is_file()
    if masked:
        contract.check_size(loss, total, f"one for each token of {path.name}")
    dtype = np.dtype("<u2" if item == 2 else "<u4")
    return FlatPart(path, dtype, lengths, edges[:-1], item, mask=loss if masked else None)


FORMAT = ForeignFormat("datatrove", suffix=".ds", read=_read)
