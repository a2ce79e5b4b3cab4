"""Commands about views: `choose` makes one (`jaxdata select`), `listing` shows and removes them.

`shown` is what a command says of the view that it made.
"""
