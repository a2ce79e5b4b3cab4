"""A batch in a line, and in a notebook as a picture."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from jaxdata.errors import InputError
from jaxdata.notebook import color_of, visible
from jaxdata.ragged import equal_runs
from jaxdata.wording import counted

_ARRAYS = ("inputs", "segment_ids", "loss_mask")
_ROWS = 16
_WIDTH, _HEIGHT, _BAND = 640, 22, 14
_TOKENS, _CHARACTERS = 60, 160


class ShownBatch:
    """What `show_batch` returns: a line as text, a picture in a notebook."""

    def __init__(self, arrays: Mapping[str, NDArray[Any]], decode: Callable[[Any], str] | None):
        self._arrays, self._decode = arrays, decode

    def __repr__(self) -> str:
        ids, loss = self._arrays["segment_ids"], self._arrays["loss_mask"]
        segments, filled = int(ids.max(-1).sum()), int(np.count_nonzero(ids))
        slots = counted(int(np.count_nonzero(loss)), "slot")
        return (
            f"batch of {counted(ids.shape[0], 'row')} of {ids.shape[1]:,}: "
            f"{counted(segments, 'segment')}, {slots} with loss, {ids.size - filled:,} padding"
        )

    def _repr_html_(self) -> str:
        rows = len(self._arrays["segment_ids"])
        size = f"{_WIDTH} {_HEIGHT * min(rows, _ROWS)}"
        drawn = "".join(self._row(number) for number in range(min(rows, _ROWS)))
        more = f"<div>and {rows - _ROWS:,} more rows</div>" if rows > _ROWS else ""
        return (
            f'<div class="jaxdata"><strong>{visible(repr(self))}</strong><div><svg '
            f'width="{_WIDTH}" viewBox="0 0 {size}" role="img" style="max-width:100%">{drawn}'
            f"</svg></div>{more}<div>A band is a segment; the line below it marks slots with "
            "loss.</div></div>"
        )

    def _row(self, number: int) -> str:
        """A row as SVG: its segments, and below them where it has loss."""
        ids, loss = (self._arrays[name][number] for name in ("segment_ids", "loss_mask"))
        top, slot = _HEIGHT * number, _WIDTH / len(ids)
        drawn = []
        for first, stop in equal_runs(ids):
            if segment := int(ids[first]):
                place = f'x="{first * slot:.1f}" width="{(stop - first) * slot - 0.5:.1f}"'
                drawn.append(
                    f'<rect {place} y="{top}" height="{_BAND}" fill="{color_of(segment - 1)}" '
                    f'fill-opacity="0.45"><title>{visible(self._said(number, first, stop))}'
                    "</title></rect>"
                )
        for first, stop in equal_runs(loss):
            if loss[first]:
                place = f'x="{first * slot:.1f}" width="{(stop - first) * slot:.1f}"'
                drawn.append(f'<rect {place} y="{top + _BAND + 1}" height="2" fill="#7d7d85"/>')
        return "".join(drawn)

    def _said(self, number: int, first: int, stop: int) -> str:
        said = f"segment of {stop - first:,} slots"
        if self._decode is None:
            return said
        text = self._decode(self._arrays["inputs"][number][first : min(stop, first + _TOKENS)])
        return f"{said}: {text[:_CHARACTERS]}"


def show_batch(batch: Any, decode: Callable[[Any], str] | None = None) -> ShownBatch:
    """Show a batch, or a row, as a line of text; in a notebook as a picture.

    Args:
        batch: as a loader gives it: a dict of arrays of numpy, jax or torch, with `inputs`,
            `segment_ids` and `loss_mask`, each (batch, seq_len) or (seq_len,).
        decode: `dataset.decode`, to show what each segment begins with.

    Raises:
        InputError: it lacks these arrays, as batches in another trainer's layout do.

    >>> import jaxdata
    >>> rows = jaxdata.pack(jaxdata.ArrayDocuments([[1, 2, 0], [3, 0]]), seq_len=4)
    >>> jaxdata.show_batch(rows[0])
    batch of 1 row of 4: 2 segments, 3 slots with loss, 1 padding
    """
    if not isinstance(batch, Mapping) or not set(_ARRAYS) <= set(batch):
        given = sorted(map(str, batch)) if isinstance(batch, Mapping) else type(batch).__name__
        raise InputError(
            f"show_batch: given {given}, expected a batch or a row with the arrays "
            f"{', '.join(_ARRAYS)}; a loader gives them with layout='jaxdata'"
        )
    return ShownBatch({name: np.atleast_2d(np.asarray(batch[name])) for name in _ARRAYS}, decode)
