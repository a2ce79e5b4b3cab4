"""What the READMEs say, done as they say it; and that what they name is there."""

import contextlib
import io
import json
import os
import re
import shlex
import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from jaxdata.cli import _run
from tests.commands import python
from tests.conftest import ROOT
from tests.readmes import PACKAGE, READMES, TOP, Readme, of
from tests.storage.servers import bucket_server

FEW = "--train.steps 2 --pack.seq_len 64 --loader.batch_size 4 --eval_tokens 256 "
FEW += "--train.model '{layers: 1, width: 32, heads: 2}'"
# What is made smaller before it runs: a part of an example, and what stands there instead, where
# "…" is the part itself.
SMALLER = {
    "--vocab-size 8192": "--vocab-size 1024",
    "--output chats.model": "… --vocab-size 1024",
    "jaxdata train tune --dataset data/chats": f"… {FEW}",
    "tiktoken:cl100k_base --add-special": "sentencepiece:my.model --add-special",
    "tiktoken:cl100k_base": "bytes",
    "--cerebras-params params.yaml": "… --tokenizer bytes",
    "--task fim": "… --set fim_prefix=1 --set fim_middle=2 --set fim_suffix=3",
    "--output rows --rows": "--output rows --pack.seq_len 64 --rows",
    "jaxdata verify --config": "jaxdata verify --pack.seq_len 256 --config",
    "jaxdata train pretrain.yaml --dataset data/mine": f"… {FEW}",
    "Loader(rows, batch_size=8)  # to a GPU": "Loader(rows[:40], batch_size=8)  # to a GPU",
    "Loader(rows, batch_size=8)\nstateful": "Loader(rows[:40], batch_size=8)\nstateful",
    "Batches(rows, batch_size=8": "Batches(rows[:40], batch_size=8",
}
CEREBRAS = """
setup: {mode: LMData, input_dir: my, output_dir: data/cerebras, output_name: lm}
processing: {tokenizer_type: NeoXTokenizer, encoder_file: 20B_tokenizer.json, max_seq_length: 128}
dataset: {jsonl_key: text}
"""
# Part of an example -> what is in its output; the rows of `=` are all of it.
PRINTS = {
    "--dataset data/mine --document ": "Its places in the run",
    "jaxdata preview": "none of them runs dry",
    "jaxdata inspect --config pretrain.yaml --dataset data/mine --step": "row 2 of the batch",
    "jaxdata inspect --config pretrain.yaml --dataset data/mine --find": "document   from",
    "jaxdata trace 'jaxdata verify says whether'": "document   from",
    "jaxdata verify data/mine": "data/mine: whole (",
    "jaxdata verify --pack.seq_len 256 --config": "proved in",
    "jaxdata.mix(rows, phases=[start": "(8, 2048) (8, 2048) 40",
    "halves": "=[(4, 256), (4, 256)] 32\n",
    "slots have loss": "of 128 slots have loss",
    "mixed.amend": "=44 40 (2048,) (8192,)\n",
    "jaxdata.pairs": "=" + "(2, 1024) (2, 1024)\n" * 4,
    "num_samples=8_000": "=(8, 1024) 2408\n",
    "layout=Megatron(attention_mask=True)": "attention_mask bool (2, 1, 256, 256)",
    "StatefulDataLoader": "="
    + "".join(f"{'(8, 1024) ' * 3}{row}\n" for row in (8, 16, 24, 32, 40)),
    "class Mine": "=1\n",
    "def backwards": "=True True\n",
    'weight="1 + tokens / 5000"': "True True\n",
    "masks=[[0, 0, 1, 1]": "loss_mask [True, True, False, True, True, False]",
    "testing.prove": "['plan', 'mixture', 'contents', 'resuming', 'hosts', 'workers', 'balance']",
    "loader.skip(8, 16)": "=['batch_sizes', 'checksum', 'fingerprint', 'next_row', 'run', "
    "'version'] 16 [16, 17, 18, 19]\n",
    "tokenizers.load": "=8 one text 256\n",
    "class Trainer(Jaxdata": "3 12\n",
    "register_for_checkpointing": "=12\n",
    "reiterable=True)": "=[5, 5, 5] 2\n",
    "loss_of_batch": "by hand: the loss of 40 packed documents is theirs one by one",
    'NamedSharding(mesh, P("data")))\nprint': "'data'",
}
# Blocks of text that hold commands: their output, or what one machine cannot run.
NOT_RUN = ["$ jaxdata preview --config demo", "$ jaxdata preview --config pod.yaml"]
NOT_RUN += ["$ jaxdata trace 'in a game", "$ jaxdata verify copy", "gs://bucket/raw"]
NOT_RUN += ["python -m jaxdata.clients.maxtext base.yml", "ray start --head", "pip install"]
NOT_RUN += ["zcat pages.jsonl.gz"]
# Run in a process of their own: they fork, or set up jax for themselves.
APART = ("jaxdata train", "torch")


def write_records(path: Path, records: Iterable[dict[str, Any]]) -> None:
    path.write_text("".join(json.dumps(record) + "\n" for record in records))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the text that the READMEs convert: this project's own sources."""
    import pyarrow
    import pyarrow.parquet

    folder = tmp_path_factory.mktemp("readme")
    (folder / "my").mkdir()
    texts = [path.read_text() for path in sorted(PACKAGE.rglob("*.py"))] * 2
    for name, some in {"my/a": texts[::2], "my/b": texts[1::2], "held-out": texts[:3]}.items():
        write_records(folder / f"{name}.jsonl", ({"text": text} for text in some))
    pyarrow.parquet.write_table(pyarrow.table({"text": texts}), folder / "more.parquet")
    choice = {"prompt": "Hi", "chosen": "Ho", "rejected": "Ha"}
    write_records(folder / "questions.jsonl", [{"question": "2+2", "answer": "4"}] * 64)
    roles, lines = ("user", "assistant"), [line for text in texts for line in text.splitlines()]
    chats = [
        {"messages": [{"role": r, "content": line} for r, line in zip(roles, pair, strict=True)]}
        for pair in zip(lines[:6000:2], lines[1:6000:2], strict=True)
    ]
    write_records(folder / "chats.jsonl", chats)
    write_records(folder / "code.jsonl", [{"text": "def f():\n    return 1\n"}] * 8)
    write_records(folder / "choices.jsonl", [choice] * 8)
    ids = pyarrow.table({"input_ids": [[1, 2, 3]] * 8, "loss_mask": [[0, 1, 1]] * 8})
    pyarrow.parquet.write_table(ids, folder / "ids.parquet")
    (folder / "pretrain.yaml").write_text((ROOT / "configs/pretrain.yaml").read_text())
    (folder / "params.yaml").write_text(CEREBRAS)
    return folder


class Reader:
    """Somebody who does what a README says, in one folder; what was done is not done again."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._printed: dict[str, str] = {}

    def follow(self, readme: Readme) -> None:
        """Run its examples in order, and compare what they print."""
        for command in readme.commands():
            check(f"{command}\n", self.run(command))
        for code in readme.blocks("python"):
            check(code, self.run(code))

    def run(self, example: str) -> str:
        if example not in self._printed:
            smaller = example
            for part, instead in SMALLER.items():
                smaller = smaller.replace(part, instead.replace("…", part))
            if "gs://bkt/mine" in example:
                self._printed[example] = self._with_bucket(smaller)
                return self._printed[example]
            apart = any(part in example for part in APART)
            self._printed[example] = (self._apart if apart else self._here)(smaller)
        return self._printed[example]

    def _here(self, example: str) -> str:
        out = io.StringIO()
        with contextlib.chdir(self.folder), contextlib.redirect_stdout(out):
            if example.startswith("jaxdata "):
                assert _run(shlex.split(example)[1:]) == 0, f"{example}\n{out.getvalue()}"
            else:
                file = self.folder / "readme.py"  # functions are known by their text
                file.write_text(example)
                exec(compile(example, str(file), "exec"), {"__name__": "readme"})
        return out.getvalue()

    def _with_bucket(self, example: str) -> str:
        """The dataset of the other examples is in a bucket, too."""
        buckets = self.folder / "buckets"
        shutil.copytree(self.folder / "data/mine", buckets / "bkt/mine", dirs_exist_ok=True)
        with bucket_server("gs", folder=buckets) as server:
            return self._apart(example, **server.env)

    def _apart(self, example: str, **variables: str) -> str:
        how = ["-m", *shlex.split(example)] if example.startswith("jaxdata ") else ["-c", example]
        environment = {**os.environ, "COLUMNS": "100", **variables}
        return python("-W", "ignore", *how, cwd=self.folder, env=environment).stdout


def check(example: str, printed: str) -> None:
    for part, expected in PRINTS.items():
        if part in f"{example}\n" and expected.startswith("="):
            assert printed == expected[1:], example
        elif part in f"{example}\n":
            assert expected in printed, f"{example}\n{printed}"


@pytest.fixture(scope="module")
def reader(folder: Path) -> Reader:
    """One who has read the top README and what other rooms stand on: all share one dataset."""
    reader = Reader(folder)
    exports = [each for each in of("foreign").commands() if each.startswith("jaxdata export")]
    for command in [*TOP.commands(), *exports]:
        if command.startswith(("jaxdata tokenizer", "jaxdata convert", "jaxdata export")):
            reader.run(command)
    return reader


DEAR = ["clients", "converter", "dedup", "look", "report", "streaming", "testing", "torch"]
"""whose examples take longer than those of all others together"""
LATER = {str(of(room)): [pytest.mark.exhaustive] for room in DEAR}
EVERY = [pytest.param(each, marks=LATER.get(str(each), [])) for each in READMES]


@pytest.mark.slow
@pytest.mark.parametrize("readme", EVERY, ids=str)
def test_the_examples_run(reader: Reader, readme: Readme, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "100")
    reader.follow(readme)


def test_the_configs_are_valid(tmp_path: Path) -> None:
    from jaxdata.config import load_config

    read = {}
    for readme in READMES:
        for number, block in enumerate(readme.blocks("yaml")):
            recipe = tmp_path / "recipe.yaml"
            data = "" if re.search("^(dataset|sources):", block, re.MULTILINE) else "dataset: d\n"
            recipe.write_text(data + block)
            read[f"{readme} {number}"] = load_config(recipe)
    curricula, amendments = (read[f"{of('mixing')} {number}"] for number in (0, 1))
    assert [len(curricula.curriculum or []), len(amendments.amendments)] == [2, 2]


@pytest.mark.parametrize("readme", READMES, ids=str)
def test_every_example_is_run(readme: Readme) -> None:
    """Languages of blocks: python, sh and yaml are run; text is a picture, or it is known."""
    for block in readme.blocks("text", ""):
        if re.search(r"^(\$ )?(jaxdata|python|pip) ", block, re.MULTILINE):
            assert any(known in block for known in NOT_RUN), block
    blocks = readme.blocks("text", "", "python", "sh", "yaml")
    assert len(blocks) * 2 == readme.text.count("\n```") + readme.text.startswith("```")
