"""Other people's trainers: the shortest way into each, one file a trainer.

A client imports its trainer when it is used, and keeps its state in that trainer's own checkpoints.
"""

from jaxdata.base.lazy import resolver

__getattr__ = resolver(__name__)
