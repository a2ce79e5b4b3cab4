"""From a dataset to rows of training: planning, packing, reading, mixing; numpy and grain only."""
