"""Copies of datasets between folders and buckets, which are whole or are no datasets.

`copying` copies them; `mirror_parts` are what it copies, each with its checksum; `mirror_journal`
is what a copy that was killed goes on from.
"""

from jaxdata.format.mirroring.copying import Mirrored, mirror

__all__ = ["Mirrored", "mirror"]
