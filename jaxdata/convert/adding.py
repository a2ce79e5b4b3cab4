"""Adding documents to sources that are there: another generation of each.

What was there stays as it is, shards and index: a run that goes on reads what it knew. The units of
the new files are numbered on, as if all had been converted at once.
"""

from __future__ import annotations

from dataclasses import replace

from jaxdata.convert.inputs import InputFile
from jaxdata.convert.job import Job
from jaxdata.convert.parameters import Parameters
from jaxdata.convert.refusals import check_addition
from jaxdata.errors import InputError
from jaxdata.format.manifest import Manifest, SourceEntry

__all__ = ["added_to"]


def added_to(
    manifest: Manifest, outputs: list[str], job: Job
) -> tuple[Job, dict[str, SourceEntry]]:
    """Return the job of the files that the sources do not have yet, and the sources.

    Args:
        manifest: of the dataset.
        outputs: the sources that the job may feed.
        job: of all files that were given.

    Raises:
        InputError: the sources were made otherwise, or have a file of the same name.
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
            f"--append: {same.name!r} was converted before with other content, and adding it would "
            "add its documents again. Give new files alone, under names of their own: where two "
            "folders have files of the same names, give the folder above, or rename them"
        )
    return new
