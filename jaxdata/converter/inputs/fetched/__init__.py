"""Inputs that are brought to this machine before they are read.

- `given_records`: names of files told apart from records that a program gives; `spool`: such
  records written down as a file.
- `hub`: data sets of the Hugging Face Hub, downloaded.
"""
