"""The page cache: files of a bucket in pages, fetched once for a host, read as memory maps."""
