"""Mixtures whose recipe changes during a run.

In the order in which data passes: `remainder` (what is untrained), `cursor` (a source across
repackings), `revision` (the mixture after an amendment), `amended_rows` (all mixtures of a run).
"""
