"""The batches of updates that Lightning accumulates, without Lightning."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import Any

import pytest
import torch

import jaxdata
import jaxdata.torch
from jaxdata.base.errors import InputError
from jaxdata.clients import lightning as rows
from jaxdata.clients.lightning import Updates
from tests.builders import documents

LENGTHS = [3 + n % 11 for n in range(90)]


def test_stopped_between_accumulated_batches_it_goes_on_within_the_update() -> None:
    def updates() -> Updates:
        table = jaxdata.pack(jaxdata.ArrayDocuments(documents(LENGTHS)), seq_len=16)
        return Updates(jaxdata.torch.Loader(table, batch_size=8, prefetch=0), 4, 1)

    def shown(batches: Any, one: Updates) -> Iterator[Any]:
        for batch in batches:
            rows.loss(
                torch.zeros(*batch["inputs"].shape, 2),
                batch | {"targets": batch["targets"] * 0},
            )
            yield batch["inputs"].tolist(), float(batch["divisor"]), one.state_dict()

    one = updates()
    whole = list(islice(shown(one, one), 11))
    for at in (0, 2, 3, 6):
        other = updates()
        other.load_state_dict(whole[at][2])
        rest = list(islice(shown(other, other), 10 - at))
        assert rest == whole[at + 1 :], f"after {at + 1} batches"
    with pytest.raises(InputError, match=r"after 3 of its batches, and accumulate_grad_batche"):
        Updates(one.loader, 2, 1).load_state_dict(whole[2][2])
