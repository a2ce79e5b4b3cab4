"""Conversations as text with and without loss.

In the order in which data passes: `conversations` reads the messages of a record, `formatting`
writes them by a template or by prefixes, `templates` asks the process in which `sandbox` runs
templates and tells the assistant's words apart.
`template_text` looks at what they write for text that only looks like special tokens.
"""
