"""Several sources as one table of rows, by exact shares of trained tokens, phase after phase.

What happens when a source is exhausted is known before row 0. An amended recipe is composed of
mixtures, one after another; a plain mixture knows nothing of amendments.
"""
