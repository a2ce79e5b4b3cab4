"""`jaxdata demo`: from raw text to an exactly resumed training run, in two minutes."""
