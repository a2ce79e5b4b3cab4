"""From rows to a trainer: batches, prefetch, worker processes, devices, and one small state."""
