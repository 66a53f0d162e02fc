"""The command ``supervise run``."""
