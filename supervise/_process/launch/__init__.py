"""Start of processes, and the code that runs in the child.

Programs start by posix_spawn; functions start by spawn, fork or fork server.
"""
