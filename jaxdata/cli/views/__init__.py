"""Commands about views: those that make them, and the one that shows and removes them."""
