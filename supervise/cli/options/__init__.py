"""The options of ``supervise run``, on the command line and in a gang file."""
