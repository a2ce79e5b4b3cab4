"""The bytes on disk: our dataset, and other tools' files.

In the order in which data passes: `records` says where each record lies in a shard, `shards` writes
them; `index` has lengths and origins, `views` kept lists of documents, `stored_columns` what both
are made of, `archive_members` the origins in archives; `manifest`
describes the whole, with the checksums of `checksums` and within `bounds`; `side_rules` says what
side arrays may be; `unfinished` is what a killed job leaves, `input_hashes` what a finished one was
made from, `history` by which commands (`redaction` takes their secrets out); `lease` says who may
write, and `lease_holder` whether that process lives.
`storage` knows where bytes live, `cache` keeps what was computed from them, `verify` compares them
with their checksums, `foreign` reads and writes other tools' files.
"""
