"""From documents to the rows of a run: tables of rows, and their rows as arrays.

Which segments make up a row is known from lengths alone. Packing and mixing are tables on tables;
reading and assembling come last, a whole batch at a time.
"""
