"""A table of rows, and its rows as arrays.

In the order in which data passes: `table` (the contract), `counts` (totals of rows), `intervals`
(shares of a mixture), `reading` (tokens of segments), `arrays` or `compact` (batches, and the
memory they reuse), `extras`, `side_arrays`.
"""
