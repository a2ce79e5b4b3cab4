"""BPE dropout on the way: each time a token is read, it may be two or more that mean the same text.

python tools/examples/bpe_dropout.py DATASET SOURCE [P]

The dataset was converted with a byte-level BPE in Hugging Face's form (`tokenizer.json`). A token
is split into the two that it was merged from, with probability P, and these in turn. It is close to
BPE dropout (Provilkov and others, 2020), which leaves out merges while it encodes.
"""

import json
import sys
from functools import partial
from pathlib import Path

import numpy as np

import jaxdata


def parents_of(folder):
    """The two ids that each id was merged from, (ids, 2); -1 where it was not."""
    model = json.loads(Path(folder, "tokenizer", "tokenizer.json").read_text())["model"]
    ids = model["vocab"]
    parents = np.full((max(ids.values()) + 2, 2), -1)
    for merge in model["merges"]:
        left, right = merge.split(" ") if isinstance(merge, str) else merge
        parents[ids[left + right]] = ids[left], ids[right]
    return parents


def dropout(document, rng, parents, p):
    """The tokens of a document, some of them split."""
    tokens = document["tokens"].astype(np.int64)
    tried = np.zeros(len(tokens), bool)
    while True:
        split = ~tried & (parents[tokens, 0] >= 0) & (rng.random(len(tokens)) < p)
        if not split.any():
            return tokens
        whole = np.stack([tokens, np.full_like(tokens, -1)], axis=1)
        pairs = np.where(split[:, None], parents[tokens], whole)
        tokens, tried = pairs[pairs >= 0], np.repeat(~split, 2)[(pairs >= 0).ravel()]


def main(folder, source, p=0.1):
    docs = jaxdata.open_dataset(folder).source("train", source)
    dropped = docs.map(partial(dropout, parents=parents_of(folder), p=float(p)), seed=1)
    rows = jaxdata.pack(dropped, seq_len=1024)
    batch = next(jaxdata.Loader(rows, batch_size=8))
    print(f"{docs.total_tokens:,} tokens became {dropped.total_tokens:,}, {len(rows):,} rows")
    print(f"the first batch has {batch['loss_mask'].sum():,} targets")


if __name__ == "__main__":
    main(*sys.argv[1:])
