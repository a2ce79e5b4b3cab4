"""Training batches straight from text, without a dataset.

Documents are read in order from any position, a buffer of them at a time is tokenized, shuffled and
packed, and the state is a position in the input.
"""
