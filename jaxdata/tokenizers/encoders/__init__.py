"""Encoders: implementations of a tokenizer that are faster than its library, with its ids.

There is one for each kind of tokenizer. It knows the parts that it takes, passes a trial against
the library (or a proof in its place), and is compared with it on samples of every unit of a
conversion. What it may not encode goes to the library.
"""
