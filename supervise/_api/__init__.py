"""Blocking calls over the actors, with PyTorch's contract. The only package that blocks."""
