"""Duplicates: found, dropped by a view, and accounted for.

A search hashes documents in units of work, finds equal hashes by sorted runs on disk, compares the
pairs, and joins them to clusters, of which one document stays.
"""
