"""Commands that make views and show them."""
