"""The dataset on disk: storage, manifest, records, shards and index."""
