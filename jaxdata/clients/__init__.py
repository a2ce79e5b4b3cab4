"""Other people's trainers: the shortest honest way into each, imported when it is used.

hf           transformers' Trainer, TRL's SFTTrainer and DPOTrainer
hf_refusals  what they would silently do wrong with a loader
"""
