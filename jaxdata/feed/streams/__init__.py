"""Streams of batches made elsewhere or ahead.

`worker_stream` (by worker processes, through `shared` memory), `ahead_stream` (by a thread),
`read_ahead` (of rows in a bucket).
"""
