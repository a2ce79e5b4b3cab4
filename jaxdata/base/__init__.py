"""The ground: what is said, what is computed with, and what runs beside. Only stdlib and numpy.

Said: `errors`, `words`, `progress`. Computed with: `seeds`, `ragged`, `numbers`, `facts` (what rows
are made from, for fingerprints), `settings`. Beside: `processes`, `threads`. `lazy` resolves names
on first use.
"""
