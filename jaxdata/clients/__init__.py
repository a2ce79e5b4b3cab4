"""Other people's trainers: the shortest honest way into each, imported when it is used.

hf          transformers' Trainer, TRL's SFTTrainer and DPOTrainer, accelerate
maxtext     MaxText: a launcher, and the iterator that it makes MaxText train on
megatron    Megatron-LM: the provider of an external data loader
torchtitan  torchtitan: a data loader, and a node of its graphs of datasets
agreement   what a trainer and a config have to agree on
measures    numbers for a trainer's own log
"""
