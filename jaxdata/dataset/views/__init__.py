"""Views: kept lists of documents beside their sources, of which no token is copied.

A view says which documents are listed, how often, and which of their tokens are masked or cut out.
"""
