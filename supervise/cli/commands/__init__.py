"""The commands besides ``supervise run``, one module each."""
