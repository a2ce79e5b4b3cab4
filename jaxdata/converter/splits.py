"""Assigning documents to splits by a hash.

The same document (or key) always goes to the same split: a document's split stays when others are
added, and duplicates never straddle.
"""

import hashlib
import json
import re
from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate
from typing import Any

from jaxdata.base.errors import InputError

_ALL = 2**64


class Ratio:
    """Names of splits and their shares.

    >>> ratio = Ratio({"train": 1.0, "val": 1.0})
    >>> {ratio.of_texts([str(i)]) for i in range(9)} == {"train", "val"}
    True
    """

    def __init__(self, shares: dict[str, float]) -> None:
        self.names = list(shares)
        sums = list(accumulate(shares.values()))
        self._ends = [round(share / sums[-1] * _ALL) for share in sums[:-1]]

    def of_texts(self, texts: Sequence[str | bytes]) -> str:
        """The split of a document of these texts, or other contents."""
        content = hashlib.blake2b(digest_size=8, person=b"jaxdata.split")
        for text in texts:
            data = text.encode() if isinstance(text, str) else text
            content.update(len(data).to_bytes(8, "little") + data)
        return self._of(content.digest())

    def of_key(self, value: Any) -> str:
        """The split of a document whose key has this value."""
        data = json.dumps(value, sort_keys=True, default=str).encode()
        return self._of(hashlib.blake2b(data, digest_size=8, person=b"jaxdata.key").digest())

    def _of(self, digest: bytes) -> str:
        return self.names[bisect_right(self._ends, int.from_bytes(digest, "little"))]


def read_ratio(text: str) -> dict[str, float]:
    """Read "train=98,val=1,test=1".

    >>> read_ratio("train=98, val=2")
    {'train': 98.0, 'val': 2.0}
    """
    shares: dict[str, float] = {}
    for item in text.split(","):
        match = re.fullmatch(r"\s*([^=\s]+)\s*=\s*(\d+(?:\.\d*)?|\.\d+)\s*", item)
        if not match or match[1] in shares:
            raise InputError(
                f"--split-ratio {text!r}: {item.strip()!r} is not a split and its share; expected "
                "each split once, as in train=98,val=1,test=1"
            )
        shares[match[1]] = float(match[2])
    if not sum(shares.values()):
        raise InputError(f"--split-ratio {text!r}: the shares add up to zero")
    return {name: share for name, share in shares.items() if share}
