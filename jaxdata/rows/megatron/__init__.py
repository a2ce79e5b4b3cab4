"""Megatron-Core's order of samples: a run can move from Megatron to JAX and see the same batches.

from jaxdata.rows import megatron

rows = megatron.gpt(source, seq_len=4096, seed=1234, num_samples=1_000_000)
loader = jaxdata.Loader(rows, batch_size=512)

Row *i* is what Megatron's dataset gives for *i*, `inputs` its `tokens` and `targets` its `labels`;
batch *s* of a loader is what its sequential sampler makes of step *s*.
"""

from jaxdata.rows.megatron.gpt_rows import blend, gpt

__all__ = ["blend", "gpt"]
