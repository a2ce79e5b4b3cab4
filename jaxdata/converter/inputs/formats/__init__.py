"""The formats of input files: how each is recognised, cut and read.

To add a format, add a file with its class and a call of `register`.
"""
