"""Documents to rows: windows, strategies, plans of blocks.

In the order in which data passes: `settings` (the parameters of `pack`), `windows`, `pad`,
`concat`, `crop`, `best_fit` (the strategies), `strategies` (their registry), `block_plan` (their
result), `planner` (documents to blocks to rows), `plan_cache`, `packed_rows` (the row table).
"""
