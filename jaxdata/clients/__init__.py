"""Other people's trainers: the shortest honest way into each, imported when it is used.

hf  transformers' Trainer, TRL's SFTTrainer and DPOTrainer, accelerate
"""
