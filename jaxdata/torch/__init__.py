"""The same rows for torch: tensors equal to the JAX loader's to the bit, from the same state.

loader = jaxdata.torch.Loader(rows, batch_size=256, device="cuda")       # by itself
DataLoader(jaxdata.torch.Batches(rows, batch_size=256), batch_size=None, num_workers=4)
StatefulDataLoader(jaxdata.torch.Loader(rows, batch_size=256), batch_size=None, num_workers=4)
"""

from jaxdata.base.errors import MissingExtra

try:
    import torch as _torch  # noqa: F401 - only to see whether it is installed
except ImportError:
    raise MissingExtra("torch", "torch") from None

from jaxdata.torch.attention import attention_mask, block_mask, cu_seqlens
from jaxdata.torch.loader import Batches, Loader, load

__all__ = ["Batches", "Loader", "attention_mask", "block_mask", "cu_seqlens", "load"]
