"""Duplicates: found as the theory says? And how fast, beside other tools?

The documents are real ones, a fifth of them followed by a copy with some words changed, so that
there are pairs of every similarity. Their true similarities are counted from all common n-grams,
document by document (brute force as a sparse product). Each tool runs in a process of its own.
"""

import argparse
import json
import random
import resource
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from corpus import shared_data
from harness import Report, arguments, machine, parse
from numpy.typing import NDArray
from one_pass import CONVERSIONS, SEARCHES, compare, tokenizer
from signature_runs import Peak, search_here, search_made_signatures

from jaxdata.base.hashing import Bands, Pieces, code_points, ngrams, word_pieces, words
from jaxdata.converter import convert, texts
from jaxdata.dataset.opening import open_dataset
from jaxdata.dedup.api import deduplicate

BANDS, ROWS, NGRAM = 14, 8, 5
DOCUMENTS, QUICK = 20_000, 400
FILES = ("wiki", "web", "multilingual", "short")
EDGES = (0.4, 0.5, 0.55, 0.6, 0.65, 0.7, 0.75, 0.8, 0.85, 0.9, 0.95, 1.0)
Figures = dict[str, float]


def documents_of(count: int) -> list[str]:
    """Real documents, or made ones where there are none; every fifth is a changed copy."""
    shared, chance = shared_data(), random.Random(0)
    vocabulary = ["".join(chance.choices("abcdeinorst", k=6)) for _ in range(5_000)]
    if shared is None or count <= QUICK:
        every = [" ".join(chance.choices(vocabulary, k=150)) for _ in range(count)]
    else:
        every = [text for name in FILES for text in texts(sorted(shared.glob(f"{name}.*"))[0])]
    found: list[str] = []
    for text in every:
        found.append(text)
        if len(found) % 5 == 4:
            found.append(_changed(text, chance))
        if len(found) >= count:
            break
    return found[:count]


def _changed(text: str, chance: random.Random) -> str:
    """A copy with a share of its words replaced; five n-grams go with each."""
    words = text.split(" ")
    share = chance.uniform(0, 0.12)
    return " ".join("changed" + word if chance.random() < share else word for word in words)


def true_pairs(grams: Pieces, least: float) -> tuple[NDArray[Any], NDArray[Any], NDArray[Any]]:
    """All pairs of documents at least so similar, and their Jaccard similarities."""
    from scipy.sparse import csr_matrix, triu

    _, column = np.unique(grams.values, return_inverse=True)
    ends = np.append(0, np.cumsum(grams.counts))
    matrix = csr_matrix((np.ones(len(column), np.int32), column, ends))
    matrix.sum_duplicates()
    matrix.data[:] = 1
    sizes = np.diff(matrix.indptr)
    common = triu(matrix @ matrix.T, 1).tocoo()
    similarity = common.data / (sizes[common.row] + sizes[common.col] - common.data)
    kept = similarity >= least
    return common.row[kept], common.col[kept], similarity[kept]


def recall(report: Report, same: Report, every: list[str], folder: Path) -> None:
    """Compare what bands find, and what is found in the end, with all pairs."""
    grams = ngrams(word_pieces(every), NGRAM)
    known = np.flatnonzero(grams.counts)
    grams = Pieces(grams.values, grams.counts[known])
    hashes = Bands(BANDS, ROWS).of_all(grams)
    one, other, similarity = true_pairs(grams, EDGES[0])
    found = (hashes[:, one] == hashes[:, other]).any(axis=0)
    theory = 1 - (1 - np.asarray(similarity) ** ROWS) ** BANDS
    for low, high in pairwise(EDGES):
        here = (similarity >= low) & ((similarity < high) | (high == 1.0))
        if here.any():
            name = f"similarity {low:.2f} to {high:.2f}"
            expected = float(theory[here].mean())
            spread = float(np.sqrt(np.sum(theory[here] * (1 - theory[here]))) / here.sum())
            note = f"{here.sum():,} pairs; in theory {expected:.3f} +- {spread:.3f}"
            report.add(name, float(found[here].mean()), note=note)
    _clusters(report, folder / "d", known[one], known[other], similarity)
    for tool in CONTESTANTS:
        file = folder / f"{tool}.npy"
        if file.exists() and tool != "jaxdata, exact copies":
            label = np.load(file)
            together = label[known[one]] == label[known[other]]
            for low, high in ((0.9, 1.01), (0.7, 0.9), (0.4, 0.6)):
                here = (similarity >= low) & (similarity < high)
                if here.any():
                    name = f"{tool}: pairs of {low} to {min(high, 1.0)} in one cluster"
                    same.add(name, float(together[here].mean()), note=f"{here.sum():,} pairs")


def _clusters(
    report: Report, dataset: Path, one: NDArray[Any], other: NDArray[Any], similarity: NDArray[Any]
) -> None:
    """Precision and recall of the pairs that are in one cluster in the end."""
    label = clusters_of(dataset, len(open_dataset(dataset)["train/all"]))
    alike = similarity >= 0.8
    together = label[one] == label[other]
    report.add("recall of pairs of 0.8 and more", float(together[alike].mean()))
    chained = set(zip(one[alike].tolist(), other[alike].tolist(), strict=True))
    linked = _direct_links(label, chained)
    report.add(
        "precision: documents dropped that are 0.8 like one of their cluster",
        linked,
        note="each is linked by a compared pair",
    )


def _direct_links(label: NDArray[Any], alike: set[tuple[int, int]]) -> float:
    dropped = np.flatnonzero(label != np.arange(len(label)))
    partners = {number for pair in alike for number in pair if label[pair[0]] == label[pair[1]]}
    return float(np.mean([number in partners for number in dropped.tolist()] or [1.0]))


def clusters_of(dataset: Path, documents: int, view: str = "bench") -> NDArray[np.int64]:
    """The survivor of each document's cluster, in a view that keeps the first."""
    docs: Any = open_dataset(dataset).source("train", "all", documents=view)
    label = np.arange(documents)
    dropped = docs.view.column("dropped")
    label[dropped] = docs.view.column("survivor") if len(dropped) else []
    return label


def run_jaxdata(folder: Path, **options: Any) -> None:
    """One process, and one worker."""
    deduplicate(folder / "d", "bench", prefer="first", workers=1, **options)


class OurWords:
    """Splits text where jaxdata does, as a word tokenizer of datatrove."""

    def word_tokenize(self, text: str) -> list[str]:
        _, starts, stops = words(code_points([text]))
        return [text[a:b] for a, b in zip(starts.tolist(), stops.tolist(), strict=True)]


def run_datatrove(folder: Path, *, our_words: bool = False) -> None:
    """Its MinHash pipeline on the same texts, one task a stage; its words are spaCy's, or ours."""
    from datatrove.pipeline.dedup import minhash
    from datatrove.pipeline.readers import JsonlReader
    from datatrove.utils.hashing import HashConfig
    from datatrove.utils.text import TextNormConfig

    work = folder / "datatrove"
    shutil.rmtree(work, ignore_errors=True)
    hashing = HashConfig(precision=64, hash_fc="sha1")
    norm = TextNormConfig(norm_numbers=False, norm_unicode_diacritics=False)
    config = minhash.MinhashConfig(NGRAM, BANDS, ROWS, norm_config=norm, hash_config=hashing)
    reader = JsonlReader(str(folder), glob_pattern="all.jsonl")
    signatures = minhash.MinhashDedupSignature(str(work / "signatures"), config)
    if our_words:
        signatures.word_tokenizer = OurWords()
    signatures.run(reader.run())
    for bucket in range(BANDS):
        buckets = minhash.MinhashDedupBuckets(
            str(work / "signatures"), str(work / "buckets"), config=config
        )
        buckets.run(rank=bucket, world_size=BANDS)
    cluster = minhash.MinhashDedupCluster(
        str(work / "buckets"), str(work / "removed"), config, save_cluster_id=True
    )
    cluster.run()


def datatrove_clusters(folder: Path, documents: int) -> NDArray[np.int64]:
    """The first document of each document's cluster."""
    file = folder / "datatrove/removed/000000.clusters"
    label = np.arange(documents)
    if file.exists():
        number, cluster = np.fromfile(file, "<u4").reshape(-1, 2).T.astype(np.int64)
        first = np.full(cluster.max() + 1, documents)
        np.minimum.at(first, cluster, number)
        label[number] = first[cluster]
    return label


CONTESTANTS: dict[str, Callable[[Path], None]] = {
    "datatrove, words as jaxdata": lambda folder: run_datatrove(folder, our_words=True),
    "datatrove": run_datatrove,
    "jaxdata": run_jaxdata,
    "jaxdata, pairs not compared": lambda folder: run_jaxdata(folder, threshold=0.0),
    "jaxdata, n-grams of ids": lambda folder: run_jaxdata(folder, of="ids"),
    "jaxdata, exact copies": lambda folder: run_jaxdata(folder, near=False),
}


def measured(name: str, given: argparse.Namespace) -> Figures | None:
    """Processor seconds and memory of a contestant, in a process of its own; None if it fails."""
    command = [sys.executable, __file__, "--run", name, "--data", str(given.data)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        print(f"left out: {name}: {done.stderr.strip().splitlines()[-1]}", file=sys.stderr)
        return None
    figures: Figures = json.loads(done.stdout.splitlines()[-1])
    return figures


def run_here(name: str, folder: Path) -> Figures:
    """Run a contestant; nothing of imports is counted."""
    if name == "signatures":
        return search_here(folder, workers=2)
    if name.startswith("datatrove"):
        import datatrove.pipeline.dedup.minhash
        import datatrove.pipeline.readers  # noqa: F401
    before = _seconds()
    with Peak() as peak:
        (CONTESTANTS | CONVERSIONS | SEARCHES)[name](folder)
    return {"cpu": _seconds() - before, "memory": max(peak.own, peak.children)}


def _seconds() -> float:
    kinds = (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)
    return sum(use.ru_utime + use.ru_stime for use in map(resource.getrusage, kinds))


def side_by_side(
    reports: Sequence[Report], given: argparse.Namespace, every: list[str], folder: Path
) -> None:
    """Take turns, then compare the clusters."""
    speed, memory, same = reports
    figures: dict[str, list[Figures]] = {}
    for _ in range(given.rounds):
        for name in CONTESTANTS:
            if given.only in (None, name) and (found := measured(name, given)):
                figures.setdefault(name, []).append(found)
                if name.startswith("jaxdata"):
                    np.save(folder / f"{name}.npy", clusters_of(folder / "d", len(every)))
    theirs = figures.get("datatrove", [])
    for name, own in figures.items():
        ratios = [a["cpu"] / b["cpu"] for a, b in zip(theirs, own, strict=False)]
        against = {"against": "datatrove", "ratios": ratios} if name != "datatrove" else {}
        speed.add(name, *(each["cpu"] for each in own), **against)
        memory.add(name, *(each["memory"] for each in own))
    if theirs:
        label = datatrove_clusters(folder, len(every))
        np.save(folder / "datatrove.npy", label)
        for name in figures:
            if name.startswith("jaxdata") and name != "jaxdata, exact copies":
                _agreement(same, name, np.load(folder / f"{name}.npy"), label)


def _agreement(
    report: Report, name: str, own: NDArray[np.int64], theirs: NDArray[np.int64]
) -> None:
    """The share of one's dropped documents that the other drops, too."""
    ours, other = (label != np.arange(len(label)) for label in (own, theirs))
    both = np.count_nonzero(ours & other)
    note = f"{np.count_nonzero(ours):,} dropped; datatrove {np.count_nonzero(other):,}"
    report.add(f"{name}: of datatrove's, also ours", both / max(1, other.sum()), note=note)
    report.add(f"{name}: of ours, also datatrove's", both / max(1, ours.sum()))
    pairs = [len(set(zip(own.tolist(), theirs.tolist(), strict=True)))]
    clusters = len(np.unique(own)), len(np.unique(theirs))
    note = f"{clusters[0]:,} clusters and single documents; datatrove {clusters[1]:,}"
    report.add(f"{name}: clusters in common", min(clusters) / pairs[0], note=note)


def hashing_speed(report: Report, every: list[str]) -> None:
    """Megabytes of text a second to MinHash signatures, on one core."""
    some = every[: max(len(every) // 10, 50)]
    size = sum(len(text.encode()) for text in some) / 1e6
    bands = Bands(BANDS, ROWS)

    def ours() -> None:
        for first in range(0, len(some), 64):
            bands.of_all(ngrams(word_pieces(some[first : first + 64]), NGRAM))

    ways: dict[str, Callable[[], None]] = {"hashing: jaxdata": ours}
    for name, make in (("rensa", _rensa), ("datasketch", _datasketch)):
        try:
            ways[f"hashing: {name}"] = make(some)
        except ImportError:
            print(f"left out: {name} is not installed", file=sys.stderr)
    for name, work in ways.items():
        begin = time.process_time()
        work()
        report.add(name, size / (time.process_time() - begin))


def _shingles(text: str) -> list[str]:
    """Its n-grams as other tools take them."""
    words = text.lower().split()
    return [" ".join(words[k : k + NGRAM]) for k in range(len(words) - NGRAM + 1)]


def _rensa(some: list[str]) -> Callable[[], None]:
    from rensa import RMinHash

    def work() -> None:
        for text in some:
            one = RMinHash(num_perm=BANDS * ROWS, seed=1)
            one.update(_shingles(text))
            one.digest()

    return work


def _datasketch(some: list[str]) -> Callable[[], None]:
    from datasketch import MinHash

    def work() -> None:
        for text in some:
            shingles = [one.encode() for one in _shingles(text)]
            MinHash(num_perm=BANDS * ROWS).update_batch(shingles)

    return work


def prepare(folder: Path, every: list[str]) -> None:
    """The documents as lines of JSON, and as a dataset."""
    lines = "".join(json.dumps({"text": text}) + "\n" for text in every)
    if (folder / "all.jsonl").exists() and (folder / "all.jsonl").read_text() == lines:
        return
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    (folder / "all.jsonl").write_text(lines)
    convert(folder / "all.jsonl", output=folder / "d", source="all", tokenizer=tokenizer())


def main() -> None:
    parser = arguments(__doc__ or "")
    parser.add_argument("--run", help=argparse.SUPPRESS)
    parser.add_argument("--signatures", type=int, help="made signatures to sort (10,000,000)")
    given = parse(parser)
    if given.run:
        print(json.dumps(run_here(given.run, given.data)))
        return
    given.data = given.data / f"dedup-{'quick' if given.quick else 'real'}"
    every = [] if given.only == "signatures" else documents_of(QUICK if given.quick else DOCUMENTS)
    facts = machine("datatrove", "datasketch", "rensa") | {"documents": len(every)}
    curve = Report("dedup", "Pairs that share a band, by similarity", "share", facts=facts)
    speed = Report("dedup", "Finding duplicates", "processor seconds", "less", facts=facts)
    memory = Report("dedup", "Memory of the largest process", "MiB", "less")
    same = Report("dedup", "Clusters of datatrove and jaxdata", "share")
    hashing = Report("dedup", "MinHash signatures, one core", "MB of text a second")
    once = Report("dedup", "Hashes kept while converting", "processor seconds", "less", facts=facts)
    sorting = Report("dedup", "Made signatures, sorted and clustered", "seconds", "less")
    if every:
        prepare(given.data, every)
    if given.only in (None, "one pass"):
        compare(once, lambda name: measured(name, given), given.rounds)
    if every and given.only != "one pass":
        side_by_side((speed, memory, same), given, every, given.data)
        deduplicate(given.data / "d", "bench", prefer="first", workers=1)
        recall(curve, same, every, given.data)
        hashing_speed(hashing, every)
    if given.only in (None, "signatures"):
        count = given.signatures or (20_000 if given.quick else 10**7)
        folder = given.data.with_name("dedup-signatures")
        command = [sys.executable, __file__, "--run", "signatures", "--data", str(folder)]
        search_made_signatures(sorting, folder, count, command)
    for report in (curve, speed, memory, same, hashing, sorting, once):
        if report.lines:
            report.show(given.json)


if __name__ == "__main__":
    main()
