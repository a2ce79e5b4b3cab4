"""What a record becomes: plain text, prompts and answers, gaps to fill, preferences.

A task makes spans with and without loss, which are then encoded. To add one, add a file with its
settings, its class and a call of `register`.
"""
