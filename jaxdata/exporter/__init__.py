"""Documents written as the files of another tool: `api` writes them.

`jaxdata.format.foreign` has a file for each format.
"""
