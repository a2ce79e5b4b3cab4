"""Streams of batches made by worker processes, or ahead of time by a thread."""
