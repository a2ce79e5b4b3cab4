"""Parameters and statistics of other tools: `cerebras`, `data_params`, `short_rows`."""
