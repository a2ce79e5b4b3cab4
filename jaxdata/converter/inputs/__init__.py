"""The files of a corpus: found, cut into units, and read as records.

In the order in which data passes:

- `discovery`: the files of folders and globs; `made_here`: what of them is no input;
  `file_types`: the format of each.
- `fetched/`: what is brought to this machine first: records that a program gives, and data sets of
  the Hugging Face Hub.
- `units`, `cutting`: the units of work; `unsplittable`: streams that one process reads for all.
- `readers`: what a file holds, through `compression` and `archives`; `read_errors`: failures.
- `formats/`: one file for each format; `scanning`: streams of bytes cut into records.
- `raw_records`: what comes out; `parsing`: raw records to mappings, and to texts.
"""
