"""Appending documents to existing sources: another generation of each.

Existing shards and indexes stay unchanged, so a running job reads what it started with. Units of
new files are numbered after the existing ones, as if all had been converted at once.
"""

from __future__ import annotations

from dataclasses import replace

from jaxdata.converter.continuing.compatibility import check_addition
from jaxdata.converter.inputs.input_file import InputFile
from jaxdata.converter.job import Job
from jaxdata.converter.parameters import Parameters
from jaxdata.errors import InputError
from jaxdata.format.manifest import Manifest, SourceEntry


def added_to(
    manifest: Manifest, outputs: list[str], job: Job
) -> tuple[Job, dict[str, SourceEntry]]:
    """Return the job for files that are new to the sources that it may feed, and these sources.

    Raises:
        InputError: the sources have different settings, or a file of the same name.
    """
    known = manifest.sources
    entries = {name: known[name] for name in outputs if name in known}
    if not entries:
        return job, {}
    for name, entry in entries.items():
        check_addition(name, entry, job.parameters)
    # All were made at the same times; one may have got no document of the last files.
    longest = max(entries.values(), key=lambda entry: len(entry.inputs))
    new = _new_files(longest, job.parameters, job.files)
    parameters = job.parameters.model_copy(
        update={
            "inputs": {file.name: job.parameters.inputs[file.name] for file in new},
            "first_file": len(longest.inputs),
        }
    )
    return replace(job, files=new, parameters=parameters), entries


def _new_files(
    entry: SourceEntry, parameters: Parameters, files: list[InputFile]
) -> list[InputFile]:
    digests = entry.parameters["input_digests"]
    names = dict(zip(entry.inputs, digests, strict=True))
    new = [file for file in files if parameters.inputs[file.name] not in digests]
    same = next((file for file in new if file.name in names), None)
    if same:
        raise InputError(
            f"--append: {same.name!r} was converted before with other content, and appending it "
            "would repeat its documents. Give only new files, under new names: if two folders have "
            "files of the same names, give their parent folder, or rename the files"
        )
    return new
