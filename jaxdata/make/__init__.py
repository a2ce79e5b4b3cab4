"""What needs both halves: rows written down for others, text streamed without a dataset."""
