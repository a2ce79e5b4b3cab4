"""Views: kept lists of documents beside their sources, of which no token is copied.

`selecting` makes one from `expressions` over `document_fields`, which may come from `score_files`,
and weights by `copies`; `source_view` is what a view makes of a source, of whose documents
`cut_ranges` may be masked or cut out, `account` counts it, and `writing` publishes and removes
it; `fates` says what it makes of one document. `documents.kept` reads it.
"""
