"""The ground: what is said, what is computed with, what runs beside. Only stdlib and numpy."""
