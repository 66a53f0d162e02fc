"""The small families."""
def names():
    return []
