"""The page cache: files of a bucket in pages, fetched once for a host, read as memory maps.

`paged_files` reads ranges of files, `page_numbers` numbers their pages, `whole_files` compares
files whose pages have no checksums; `page_cache` is the cache of the process, made of `page_folder`
(what is here) and `page_fetcher` (what is coming), in the place that `own_folder` knows;
`index_columns` copies those of an index, `far_column` only parts of long ones; `run_folder` marks
the pages that a process needs, `claims` lets one process fetch a page for all; `read_counts`
counts, `inventory` lists, compares and clears what is here.
"""
