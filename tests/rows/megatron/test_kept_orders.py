"""Megatron's orders that are kept: damaged ones are named where they are used, or made again."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import jaxdata
from jaxdata.base.errors import DatasetError
from tests.builders import dataset

DOCUMENTS = 40


@pytest.fixture
def source(tmp_path: Path) -> Any:
    lengths = np.random.default_rng(0).integers(2, 30, DOCUMENTS)
    return jaxdata.open_dataset(dataset(tmp_path / "d", {"web": lengths})).source("train", "web")


def orders(tmp_path: Path) -> list[Path]:
    return sorted(tmp_path.glob("d/plans/megatron-*"))


def damage(file: Path, at: int, dtype: str, change: Callable[[Any], object]) -> None:
    data = bytearray(file.read_bytes())
    change(np.frombuffer(data, dtype, DOCUMENTS, at))
    file.write_bytes(data)


ENDS, SAMPLES = 0, 8 * DOCUMENTS
DAMAGES: dict[str, tuple[int, str, Callable[[Any], object]]] = {
    "ends beyond": (ENDS, "<i8", lambda ends: ends.__iadd__(2**40)),
    "documents there are not": (-4 * DOCUMENTS - 32, "<i4", lambda order: order.fill(2**30)),
}


@pytest.mark.parametrize("name", DAMAGES)
def test_a_damaged_order_is_named_where_it_is_used(tmp_path: Path, source: Any, name: str) -> None:
    rows = jaxdata.rows.megatron.gpt(source, seq_len=16)
    assert len([rows[number] for number in range(len(rows))]) > 20
    (file,) = orders(tmp_path)
    at, dtype, change = DAMAGES[name]
    damage(file, at % file.stat().st_size, dtype, change)
    rows = jaxdata.rows.megatron.gpt(source, seq_len=16)
    with pytest.raises(DatasetError) as error:
        [rows[number] for number in range(len(rows))]
    assert str(error.value) == (
        f"{file} is damaged: it is not Megatron's order of train/web; delete it; it is computed "
        "again when needed"
    )


@pytest.mark.parametrize("value", [-1, 2])
def test_a_damaged_blend_is_named(tmp_path: Path, source: Any, value: int) -> None:
    """When it is opened: that reads it whole."""

    def blend() -> Any:
        return jaxdata.rows.megatron.blend([(1, source), (2, source)], size=20, seq_len=16)

    size = len(blend())
    (file,) = [path for path in orders(tmp_path) if path.stat().st_size == 10 * size + 32]
    data = bytearray(file.read_bytes())
    np.frombuffer(data, "<i2", size, 8 * size)[7] = value
    file.write_bytes(data)
    with pytest.raises(DatasetError) as error:
        blend()
    assert str(error.value) == (
        f"{file} is damaged: it is not the blend of 2 datasets; delete it; it is computed again "
        "when needed"
    )
