"""Packed rows exported once, for consumers that read records in order.

`api` is the front door. Then in the order in which data passes: `selection` makes the rows,
`formats` turns them into records, `shard_writer` writes these in worker processes, `row_manifest`
describes them in `rows.json`; `row_source` reads them again and `verify_rows` checks them.
"""
