"""What every room stands on: errors, seeds, hashes, settings, processes. Stdlib and numpy only."""
