"""What is kept of documents beside their tokens.

- `kept_columns`: the columns of one value a token, and of which types they are.
- `kept_hashes`, `document_hashes`: hashes of each text: which ones, and how a worker makes them.
"""
