"""Training batches straight from text, without a dataset.

`api` is the front door. Then in the order in which data passes: `stream_recipe` is what decides the
rows; `input_reader` (files) and `record_reader` (records of any iterable) meet the contract in
`text_source` and read documents from any position; `text_blocks` tokenizes and packs a buffer
of them and makes batches of the rows, `iterator` delivers these and keeps the state.
"""
