"""The demo: seven stages, each timed and checked; the first failure ends it.

Training processes are started as a user starts them and one is killed; another number of hosts
makes every row again. The text is real, found on any machine with Python: its library and manual,
licences and READMEs. Source files are read and parsed, not imported. The order of the documents and
the choice of the held-out ones depend only on the installed files.
"""

import ast
import hashlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import sysconfig
import textwrap
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import chain, islice, product, zip_longest
from pathlib import Path
from pydoc_data.topics import topics

from rich.console import Console

from jaxdata import tokenizers
from jaxdata.base.errors import InputError, JaxdataError, counted
from jaxdata.base.processes import held_port
from jaxdata.config import Config, load, load_config
from jaxdata.converter import convert
from jaxdata.dataset.opening import open_dataset
from jaxdata.look.dataset_summary import compare_strategies, packing_table
from jaxdata.look.terminal import table
from jaxdata.testing.proofs import joined
from jaxdata.train.devices import batch_digest
from jaxdata.train.trainer import read_log

Document = tuple[str, str]  # name, text
Say = Callable[[str], None]
_MARK = ".jaxdata-demo"
_VALIDATION_EVERY = 50
_NOT_LIBRARY = {"site-packages", "dist-packages", "test", "tests", "idle_test", "pydoc_data"}
_PAPERS = ("METADATA", "LICEN", "COPYING", "NOTICE", "AUTHORS", "README", "CHANGE", "HISTORY")
_TABLE_SEQ_LEN = 2048
_RESUMED_HOSTS = 2
_PROOF_HOSTS = 4
_NEXT = textwrap.dedent(
    """\
    The same with your own text (.jsonl, .jsonl.gz, .txt or .parquet):

      jaxdata tokenizer train my.jsonl --vocab-size 8192 --output my.model
      jaxdata convert my.jsonl --output data/mine --source mine --tokenizer sentencepiece:my.model
      jaxdata train pretrain --dataset data/mine
    """
)


@dataclass(frozen=True)
class Size:
    """The scale of a demo; `every` is the number of steps between checkpoints."""

    characters: int
    vocab_size: int
    tokenizer_bytes: int
    steps: int
    every: int


FULL = Size(characters=5_000_000, vocab_size=4096, tokenizer_bytes=4_000_000, steps=200, every=50)
QUICK = Size(characters=500_000, vocab_size=1024, tokenizer_bytes=600_000, steps=30, every=10)


class Demo:
    """One run of the demo, in its own folder: `corpus/`, `tokenizer.model`, `dataset/`, `run/`."""

    def __init__(self, output: Path, size: Size, console: Console) -> None:
        self.output, self.size, self.console = output, size, console
        self.corpus, self.dataset = output / "corpus", output / "dataset"
        self.log = output / "run" / "log.jsonl"
        self._sources: list[str] = []

    def run(self) -> None:
        """Run all stages; raises JaxdataError if one fails."""
        mine = (self.output / _MARK).exists()
        if self.output.exists() and not mine and any(self.output.iterdir()):
            raise InputError(
                f"{self.output} exists and was not made by a demo: give another folder with "
                "--output"
            )
        shutil.rmtree(self.output, ignore_errors=True)
        self.output.mkdir(parents=True)
        (self.output / _MARK).touch()
        stages: list[tuple[str, Callable[[], str]]] = [
            ("gather real text", self._gather),
            ("train a tokenizer", self._train_tokenizer),
            ("convert", self._convert),
            ("plan the packing", self._plan),
            ("train, then SIGKILL", self._train),
            (f"resume on {_RESUMED_HOSTS} hosts", self._resume),
            ("prove the rows", self._prove),
        ]
        results = list[tuple[str, str, float]]()
        for number, (name, stage) in enumerate(stages, 1):
            self.console.print(f"\n[bold]{number}/{len(stages)}  {name}[/bold]")
            started = time.perf_counter()
            result = stage()
            seconds = time.perf_counter() - started
            results.append((name, result, seconds))
            self._say_inside(f"{result}  ({seconds:.1f} s)")
        rows = [(name, result, f"{seconds:.1f}") for name, result, seconds in results]
        shown = table("What happened", ["stage", "result"], ["seconds"], rows)
        shown.add_section()
        shown.add_row("total", "", f"{sum(seconds for *_, seconds in results):.1f}")
        self.console.print("\n", shown)
        self._say(f"Everything is in {self.output}/\n")
        self._say(_NEXT)

    def _say(self, line: str) -> None:
        self.console.print(line, markup=False, highlight=False, soft_wrap=True)

    def _say_inside(self, line: str) -> None:
        self._say(f"     {line}")

    def _gather(self) -> str:
        library = Path(sysconfig.get_path("stdlib"))
        sources = {
            "code": _source_files(library),
            "docs": _documentation(library),
            "meta": _package_papers(Path(sysconfig.get_path("purelib"))),
        }
        whole = Counter[str]()
        for name, texts in sources.items():
            counts = _write(self.corpus, name, texts, self.size.characters)
            if counts["train"]:
                self._sources.append(name)
                whole += counts
                self._say_inside(
                    f"{name}: {counted(counts['train'], 'document')}, {counts['val']:,} held out "
                    f"for validation, {counts['characters'] / 1e6:.1f} million characters"
                )
        size = f"{whole['characters'] / 1e6:.1f} million characters of this machine"
        return f"{counted(whole['train'] + whole['val'], 'document')}, {size}"

    def _train_tokenizer(self) -> str:
        used = tokenizers.train(
            self._texts(),
            self.output / "tokenizer.model",
            vocab_size=self.size.vocab_size,
            max_bytes=self.size.tokenizer_bytes,
        )
        return f"SentencePiece, {self.size.vocab_size:,} pieces, from {used / 1e6:.1f} MB"

    def _texts(self) -> Iterator[str]:
        """The documents of all sources, in turn."""
        files = [self.corpus / "train" / f"{name}.jsonl" for name in self._sources]
        rounds = zip_longest(*(path.open(encoding="utf-8") for path in files))
        return (json.loads(line)["text"] for line in chain.from_iterable(rounds) if line)

    def _convert(self) -> str:
        tokenizer = tokenizers.load(f"sentencepiece:{self.output / 'tokenizer.model'}")
        reports = []
        for name, split in product(self._sources, ("train", "val")):
            report = convert(
                str(self.corpus / split / f"{name}.jsonl"),
                output=self.dataset,
                source=name,
                split=split,
                tokenizer=tokenizer,
            )
            self._say_inside(str(report).splitlines()[1])
            reports.append(report)
        tokens = sum(report.tokens for report in reports)
        return (
            f"{counted(sum(report.documents for report in reports), 'document')}, {tokens:,} "
            f"tokens, {sum(report.text_bytes for report in reports) / tokens:.2f} bytes a token"
        )

    def _plan(self) -> str:
        dataset = open_dataset(str(self.dataset))
        sources = [dataset.source("train", name) for name in self._sources]
        costs = compare_strategies(sources, seq_len=_TABLE_SEQ_LEN)
        self.console.print(packing_table(costs, seq_len=_TABLE_SEQ_LEN))
        by_name = {cost["strategy"]: cost for cost in costs}
        best, pad = by_name["best_fit"], by_name["pad"]
        return (
            f"best_fit fills {100 * (1 - best['padding_share']):.2f} % of slots and saves "
            f"{100 * (1 - best['rows'] / pad['rows']):.0f} % of the rows that padding takes"
        )

    def _train(self) -> str:
        kill_after = self.size.steps // 2 + self.size.every // 3
        last = train_and_kill(self._arguments(), self.log, kill_after, self._say_inside)
        records = read_log(self.log)
        saved = max((r["step"] for r in records if r.get("event") == "checkpoint"), default=0)
        if not 0 < saved < last:
            raise JaxdataError(f"killed after step {last} with a checkpoint of step {saved}")
        return f"killed after step {last + 1}; the newest checkpoint is of step {saved}"

    def _resume(self) -> str:
        train_on_hosts(self._arguments(), _RESUMED_HOSTS, self._say_inside)
        records = read_log(self.log)
        losses = [record["loss"] for record in records if "loss" in record]
        scores = [r["bits_per_byte"] for r in records if "bits_per_byte" in r]
        if not (losses[-1] < losses[0] and scores[-1] < scores[0]):
            raise JaxdataError(f"{self.log}: the loss did not fall: {losses[0]} to {losses[-1]}")
        fell = f"loss {losses[0]:.2f} → {losses[-1]:.2f}"
        return f"{fell}, validation {scores[0]:.2f} → {scores[-1]:.2f} bits per byte"

    def _prove(self) -> str:
        self._say_inside(f"{_PROOF_HOSTS} hosts make the {self.size.steps} batches again")
        return prove_rows(load_config("demo", self._overrides()), self.log, hosts=_PROOF_HOSTS)

    def _overrides(self) -> dict[str, object]:
        base = load_config("demo")
        rows = self.size.steps * base.loader.first_batch_size
        phase = (base.curriculum or [])[0].phase()
        mix = {name: weight for name, weight in phase.numbers.items() if name in self._sources}
        return {
            "dataset": str(self.dataset),
            "curriculum": [{"rows": rows, "mix": mix}],
            "train.output": str(self.log.parent),
            "train.checkpoint_every": self.size.every,
            "train.log_every": self.size.every // 5,
            "train.eval_every": self.size.steps // 2,
        }

    def _arguments(self) -> list[str]:
        pairs = ((f"--{name}", json.dumps(value)) for name, value in self._overrides().items())
        return ["demo", *chain.from_iterable(pairs)]


def _write(output: Path, name: str, documents: Iterable[Document], limit: int) -> Counter[str]:
    """Write `output/<split>/<name>.jsonl`, up to `limit` characters.

    The first document, and one in 50 by its hash, goes to split `val`. Returns the number of
    documents by split, and of `characters`.
    """
    counts, seen = Counter[str](), set[bytes]()
    with ExitStack() as stack:
        files = {}
        for split in ("train", "val"):
            path = output / split / f"{name}.jsonl"
            path.parent.mkdir(parents=True, exist_ok=True)
            files[split] = stack.enter_context(path.open("w", encoding="utf-8"))
        for title, text in documents:
            digest = hashlib.sha256(text.encode()).digest()
            if digest in seen:
                continue
            seen.add(digest)
            held_out = len(seen) == 1 or int.from_bytes(digest[:8]) % _VALIDATION_EVERY == 0
            split = "val" if held_out else "train"
            files[split].write(json.dumps({"name": title, "text": text}) + "\n")
            counts.update({split: 1, "characters": len(text)})
            if counts["characters"] >= limit:
                break
    return counts


def _source_files(library: Path) -> Iterator[Document]:
    """Every module of the standard library, without its tests."""
    for path in sorted(library.rglob("*.py")):
        inside = path.relative_to(library)
        if not _NOT_LIBRARY.intersection(inside.parts) and (text := _read(path)).strip():
            yield inside.as_posix(), text


def _documentation(library: Path) -> Iterator[Document]:
    """The texts of `help("topics")`, then every multi-line docstring of the library."""
    yield from topics.items()
    documented = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    for place, source in _source_files(library):
        module = place.removesuffix(".py").replace("/", ".")
        try:
            with warnings.catch_warnings(action="ignore"):
                nodes = list(ast.walk(ast.parse(source)))
        except (SyntaxError, ValueError):  # of another version of Python
            continue
        for node in nodes:
            text = (isinstance(node, documented) and ast.get_docstring(node)) or ""
            if "\n" in text:
                name = f"{module}.{getattr(node, 'name', '')}".rstrip(".")
                yield name, f"{name}\n\n{text}"


def _package_papers(packages: Path) -> Iterator[Document]:
    """Licences, descriptions and changelogs of installed packages."""
    for path in sorted(packages.rglob("*")):
        is_paper = path.name.upper().startswith(_PAPERS) or path.suffix in (".md", ".rst")
        is_paper &= path.suffix not in (".py", ".pyc", ".json") and path.is_file()
        if is_paper and (text := _read(path)).strip():
            yield path.relative_to(packages).as_posix(), text


def _read(path: Path) -> str:
    """The text of a file; empty if it is not UTF-8 or unreadable."""
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        return ""


def train_and_kill(arguments: Sequence[str], log: Path, after_step: int, say: Say) -> int:
    """Run `jaxdata train`, SIGKILL it once `after_step` is in its log, and return the last step."""
    with _start(arguments) as process:
        try:
            for line in _lines(process):
                say(line)
                if last_logged_step(log) >= after_step:
                    break
        finally:
            process.send_signal(signal.SIGKILL)
        ended = process.wait()
    if ended != -signal.SIGKILL:
        raise JaxdataError(
            f"the training process exited with code {ended} before it could be killed"
        )
    return last_logged_step(log)


def train_on_hosts(arguments: Sequence[str], hosts: int, say: Say) -> None:
    """Run `jaxdata train` to its end as several JAX processes that share each batch.

    In some sandboxes the machine's own name does not resolve, and JAX processes cannot find each
    other; then each host is a virtual device of one process.
    """
    with ExitStack() as stack:
        environment = {}
        if _name_resolves():
            coordinator = f"localhost:{stack.enter_context(held_port())}"
            cluster = ["--coordinator", coordinator, "--num-processes", str(hosts)]
            own = [[*cluster, "--process-id", str(host)] for host in range(hosts)]
        else:
            say(f"(this machine's name does not resolve: {hosts} devices of one process are hosts)")
            devices = f"--xla_force_host_platform_device_count={hosts}"
            environment["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} {devices}"
            own = [[]]
        threads = stack.enter_context(ThreadPoolExecutor())
        processes: list[subprocess.Popen[str]] = []
        for more in own:
            process = stack.enter_context(_start([*arguments, *more], **environment))
            stack.callback(process.kill)
            processes.append(process)
        said: list[str] = []

        def follow(number: int) -> int:
            """Note what a process says, or say it of the first; if one fails, the others end."""
            for line in _lines(processes[number]):
                (said.append if number else say)(line)
            if ended := processes[number].wait():
                for other in processes:
                    other.kill()
            return ended

        ends = [*threads.map(follow, range(len(processes)))]
        if any(ends):
            output = "\n".join(said)
            raise JaxdataError(f"the hosts exited with codes {ends}, not 0\n{output}".rstrip())


def _name_resolves() -> bool:
    """Whether JAX's CPU collectives, which look up the machine's name, will work."""
    try:
        socket.getaddrinfo(socket.gethostname(), None)
    except OSError:
        return False
    return True


def _lines(process: subprocess.Popen[str]) -> Iterator[str]:
    """The lines a process prints, without those of the collectives."""
    return (line.rstrip() for line in process.stdout or () if not line.startswith("[Gloo]"))


def _start(arguments: Sequence[str], **environment: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "jaxdata", "train", *arguments],
        env={**os.environ, "JAX_PLATFORMS": "cpu", **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
    )


def last_logged_step(log: Path) -> int:
    """The last step with a loss in a log, -1 if there is none."""
    if not log.exists():
        return -1
    return max((record["step"] for record in read_log(log) if "loss" in record), default=-1)


def prove_rows(config: Config, log: Path, *, hosts: int) -> str:
    """Compare the digests in a run's log with those of the batches that `hosts` loaders make.

    Raises:
        JaxdataError: a step is not in the log, or trained other rows, one of the times it did.
    """
    logged: dict[int, list[str]] = {}
    for record in read_log(log):
        if "rows" in record:
            logged.setdefault(record["step"], []).append(record["rows"])
    with ExitStack() as stack:
        loaders = [load(config, shard=(host, hosts)) for host in range(hosts)]
        for loader in loaders:
            stack.callback(loader.close)
        expected = [batch_digest(batch) for batch in islice(joined(loaders), config.train.steps)]
    missing = [step for step in range(len(expected)) if step not in logged]
    differing = [n for n, digest in enumerate(expected) if set(logged.get(n, ())) - {digest}]
    if missing or differing:
        raise JaxdataError(
            f"{log}: of {len(expected)} steps, {len(missing)} are not in the log (first: "
            f"{missing[:1]}) and {len(differing)} have other rows than {hosts} hosts make "
            f"(first: {differing[:1]})"
        )
    compared = sum(map(len, logged.values()))
    rows, repeated = compared * config.loader.first_batch_size, compared - len(expected)
    return f"{rows:,} rows compared: not one differs ({repeated} steps were trained twice)"
