"""Other people's trainers: the shortest honest way into each, imported when it is used.

hf          transformers' Trainer, TRL's SFTTrainer and DPOTrainer
hf_refusals  what they would silently do wrong with a loader
torchtitan  a data loader, and a node of its graphs of datasets
maxtext     a launcher, and the iterator that MaxText then trains on
megatron    Megatron-LM's provider of an external data loader
tunix       data hooks of its trainers
levanter    an AsyncDataset of its examples
nanodo nanogpt nanochat  what their scripts call for data
agreement   what a trainer and a config have to agree on, and what its log says
whole_rows  what trainers need whose attention knows no documents
"""

from __future__ import annotations

from jaxdata.base.lazy import resolver

__getattr__ = resolver(__name__)
