"""What a conversion meets where it writes: its own beginning, or sources that it adds to.

- `compatibility`: what makes it refuse; `append`: what is new of its inputs.
- `known_inputs`: whether inputs that were converted are still what they were.
- `call_text`: a call as text, for the history.
"""
