"""Supervision trees: actors that start, stop and restart other actors, and the monitor that they use."""
