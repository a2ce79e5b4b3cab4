"""Commands about views: those that make them, and `listing`, which shows and removes them.

`choose` is `jaxdata select`, `dedup_command` is `jaxdata dedup`; `shown` is what a command says of
the view that it made.
"""
