"""Documents as hashes: of the whole text, of its n-grams, and of samples of these.

characters     which characters make words, and their lower case
exact_hashes   128 bits of the normalised text: equal for exact copies
ngrams         texts as words or bytes, documents as token ids, and the hashes of their n-grams
token_windows  token ids as windows, their hashes, and samples of these
minhash        band hashes: likely to be equal for near copies

`VERSION` is that of all of them.
"""

VERSION = 1
"""Raised when a hash of a document becomes another: those of different versions do not compare."""
