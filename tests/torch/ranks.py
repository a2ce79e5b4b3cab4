"""One process of a `torch.distributed` run for tests: `python -m tests.torch.ranks JOB RANK`."""

from __future__ import annotations

import json
import sys
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from torch import distributed
from torchdata.stateful_dataloader import StatefulDataLoader

import jaxdata.torch
from tests.feed.pod import mixed


def main(job: dict[str, Any], rank: int) -> None:
    """Deliver some steps of this rank's part; its rank is not said to the loader."""
    output = Path(job["output"])
    distributed.init_process_group(
        "gloo", init_method=f"file://{output / 'meeting'}", rank=rank, world_size=2
    )
    loader = jaxdata.torch.Loader(mixed(job["path"], "best_fit"), batch_size=12)
    if job["state"]:
        loader.load_state_dict(job["state"])
    batches = StatefulDataLoader(loader, batch_size=None, num_workers=rank + 1)
    delivered = list(islice(batches, job["steps"]))
    loader.load_state_dict(batches.state_dict())
    (output / f"{rank}.json").write_text(json.dumps(loader.state_dict()))
    arrays = {key: np.stack([batch[key].numpy() for batch in delivered]) for key in delivered[0]}
    np.savez(output / f"{rank}.npz", **arrays)
    distributed.barrier()
    distributed.destroy_process_group()


if __name__ == "__main__":
    main(json.loads(sys.argv[1]), int(sys.argv[2]))
