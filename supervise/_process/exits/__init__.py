"""How the exit of a process is noticed and what its status is."""
