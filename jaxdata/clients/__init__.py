"""Other people's trainers, each in its own file, imported when it is used."""
