"""Megatron-Core's order of samples, exactly: which tokens row *i* of its GPT dataset holds."""
