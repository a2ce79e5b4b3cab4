"""Preference pairs: two aligned sources, two sides of a row.

`truncation` fits a pair to a row, `pairs` is the dataset of rows.
"""
