"""Streams of batches: an iterator of batches with their spans, that can be closed.

`open_stream` (the contract, and the one that a loader reads), `direct_streams` (made when they are
requested), `worker_stream` (by worker processes, through `shared` memory), `ahead_stream` (by a
thread), `read_ahead` (of rows in a bucket).
"""
