"""Rows and documents as other tools' files, and the parameters of Cerebras' preprocessing."""
