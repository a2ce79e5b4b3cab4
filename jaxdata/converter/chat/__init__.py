"""Conversations as text with and without loss.

In the order in which data passes: `conversations` reads the messages of a record, `formatting`
writes them by a template or by prefixes, `templates` tells the assistant's words apart, `sandbox`
runs templates within the limits of `sandbox_limits`, which `limited_nodes` puts into them.
`template_text` looks at what they write for text that only looks like special tokens.
"""
