"""Conversations as text with and without loss, written by a chat template or by prefixes."""
