"""Benchmarks in documents: read from files, found, and their words as ranges of tokens.

benchmark_files  files of benchmarks, each a member of its own
published_rules  when a document has a benchmark, by the names of papers
overlaps         documents that have one
benchmark_spans  where: ranges of their tokens
"""
