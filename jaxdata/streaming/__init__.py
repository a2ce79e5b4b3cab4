"""Training batches straight from text, without a dataset: `api.stream_text`."""
