"""Benchmarks that training text is compared with: files, each a member of its own."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import orjson

from jaxdata.converter.api import texts_with_places
from jaxdata.converter.inputs.discovery import find_inputs
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


def read_benchmarks(given: Iterable[str], text_key: str) -> list[Benchmark]:
    """Read the benchmarks of paths, globs or URLs; one file that several name is read once.

    Raises:
        InputError: a file is not found, or has no record with a text under the key.
    """
    found: dict[str, Benchmark] = {}
    keys = tuple(key.strip() for key in text_key.split(","))
    for one in given:
        for file in find_inputs(one):
            if file.where not in found:
                rows = [(place, text) for _, place, text in texts_with_places([file], keys, "\n\n")]
                if not rows:
                    raise InputError(
                        f"{file.where} has no record with a text under the key {text_key!r}; name "
                        "the key of its texts with --text-key (several with commas)"
                    )
                texts = [text for _, text in rows]
                found[file.where] = Benchmark(
                    Member(
                        file.where,
                        len(texts),
                        digest(texts),
                        against=True,
                        table=f"benchmark-{len(found):03d}",
                    ),
                    texts,
                    [place for place, _ in rows],
                )
    return list(found.values())


def places_by_file(benchmarks: Iterable[Benchmark]) -> Mapping[str, list[int]]:
    """The places of each file's texts, by its name."""
    return {each.member.name: each.places for each in benchmarks}
