"""Units of a search for duplicates, each of which a worker does and commits by a receipt.

dedup_job        the search as workers get it, and the units that it is cut into
dedup_worker     a worker process
workbench        what units share in a process: the dataset, opened
signature_units  documents hashed
candidate_units  equal hashes found, a part of all at a time
pair_units       pairs of documents compared
span_units       spans of tokens that occur before
sorted_runs      records on disk, sorted by a key
"""
