"""Documents to rows: windows, strategies, plans of blocks.

In the order in which data passes: `settings` (the parameters of `pack`), `windows`, `strategies`
(a file each, and their registry), `mixed_fit` (rows that mix lengths), `block_plan` (their result),
`planner` (documents to blocks to rows), `plan_cache` (on disk), `plan_memory`, `packed_rows` (the
row table).
"""
