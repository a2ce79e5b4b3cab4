"""Arguments that commands share, or that are made from models."""
