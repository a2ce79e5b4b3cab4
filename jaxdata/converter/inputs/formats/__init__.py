"""The formats of input files: how each is recognised, cut and read.

`base` is the contract and the registry. Each format is registered by the file that reads it:
`json_records` (.jsonl, .json), `plain_text` (.txt, .md, .rst, .html), `delimited` (.csv, .tsv),
`tables` (.parquet, .arrow), whose rows become records in `columns`.

To add a format, add a file with its class and a call of `register`.
"""
