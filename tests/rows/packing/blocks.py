"""One block, packed alone."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from jaxdata.rows.packing.block_plan import Packed
from jaxdata.rows.packing.planner import pack_blocks
from jaxdata.rows.packing.settings import PackSettings


def pack_block(lengths: ArrayLike, **settings: Any) -> Packed:
    """Documents of these lengths as rows of a block."""
    given = np.asarray(lengths)
    (packed,) = pack_blocks(given, np.array([0, len(given)]), PackSettings.checked(**settings))
    return packed
