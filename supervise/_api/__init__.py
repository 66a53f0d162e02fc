"""Ordinary blocking calls over the actors: PyTorch's contract. The only place that blocks."""
