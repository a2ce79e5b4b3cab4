"""Documents of a source: opening datasets, and reading ranges of tokens.

In the order in which data passes: `converted_dataset`, `converted` (our datasets), `foreign` (other
tools'), `joined` (several as one), `dataset` (the contract of them all), `kept` (what a view
keeps), `custom` (your own objects), `token_ids` (their check), `in_memory` (arrays), `places`
(where tokens lie, without reading them), `base` (the contract of documents).
"""
