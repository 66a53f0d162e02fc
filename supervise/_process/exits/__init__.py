"""Detection of the exit of a process, and its status."""
