"""Views: kept lists of documents beside their sources, of which no token is copied.

`source_view` says what a view makes of a source, `account` counts it, `writing` publishes and removes
it. `documents.kept` reads it.
"""
