"""Several sources as one table of rows, by exact shares.

In the order in which data passes: `weights`, `phases`, `recipe` (what is asked), `apportion` (exact
shares), `timeline` (phases as intervals, exhaustion), `mixture` (the row table),
`preview` (what it will deliver), `concatenated` (sources in sequence), `amend/` (recipes that
change during a run).
"""
