"""Benchmarks that training text is compared with: files, each a member of its own."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import orjson

from jaxdata.converter.api import texts_with_places
from jaxdata.converter.inputs.discovery import find_inputs
from jaxdata.converter.inputs.input_file import InputFile
from jaxdata.dedup.members import Member
from jaxdata.errors import InputError
from jaxdata.facts import digest


@dataclass(frozen=True)
class Benchmark:
    """The texts of a file, and the line (from 1) or row (from 0) of each."""

    member: Member
    texts: list[str]
    places: list[int]

    def table(self) -> bytes:
        """The texts as a job keeps them."""
        return orjson.dumps(self.texts)


def read_benchmarks(given: Sequence[str], text_key: str) -> list[Benchmark]:
    """Read the benchmarks of paths, globs or URLs, all of one place; each file is read once.

    Raises:
        InputError: a file is not found, or has no record with a text under the key.
    """
    files = find_inputs(given) if given else []
    keys = tuple(key.strip() for key in text_key.split(","))
    return [_read(file, keys, f"benchmark-{number:03d}") for number, file in enumerate(files)]


def _read(file: InputFile, keys: tuple[str, ...], table: str) -> Benchmark:
    rows = [(place, text) for _, place, text in texts_with_places([file], keys, "\n\n")]
    if not rows:
        raise InputError(
            f"{file.where} has no record with a text under the key {','.join(keys)!r}; name the "
            "key of its texts with --text-key (several with commas)"
        )
    texts = [text for _, text in rows]
    member = Member(file.name, len(texts), digest(texts), against=True, table=table)
    return Benchmark(member, texts, [place for place, _ in rows])


def places_by_file(benchmarks: Iterable[Benchmark]) -> Mapping[str, list[int]]:
    """The places of each file's texts, by its name."""
    return {each.member.name: each.places for each in benchmarks}
