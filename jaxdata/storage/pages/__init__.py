"""The page cache: files of a bucket in pages, fetched once for a host, read as memory maps.

A page is fetched by one process, verified, and mapped by all. A run holds on to the pages that it
needs; the others are evicted when the cache is full, those used longest ago first.
"""
