"""The format, and documents in it: our datasets, views of them, and other tools' files.

Nothing outside this room knows how bytes are arranged. Lengths alone are enough to plan; tokens are
read by ranges.
"""
