"""The text of a failure and the picture of a result: what `str` and notebooks show of public objects."""
