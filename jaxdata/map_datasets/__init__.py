"""Rows as real `grain.MapDataset`s.

`row_dataset` (a table of rows as one), `packed_dataset` (`pack`), `mixed_dataset` (`mix`),
`evaluation` (`evaluation_rows`), and `underlying` (what a dataset was made of, for loaders).
"""

from jaxdata.map_datasets.evaluation import evaluation_rows
from jaxdata.map_datasets.mixed_dataset import MixedDataset, mix
from jaxdata.map_datasets.packed_dataset import PackedDataset, pack
from jaxdata.map_datasets.row_dataset import KeyedDataset, RowDataset

__all__ = [
    "KeyedDataset",
    "MixedDataset",
    "PackedDataset",
    "RowDataset",
    "evaluation_rows",
    "mix",
    "pack",
]
