"""Documents to rows: windows, strategies, plans of blocks.

Documents are dealt to blocks, and each block is packed by a strategy, a pure function of lengths;
row *i* of epoch *e* is then arithmetic.
"""
