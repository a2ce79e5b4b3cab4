"""The files of a corpus: found, cut into units, and read as records.

Nothing is unpacked or copied, but for records that a program gives; memory does not grow with the
size of a file.
"""
