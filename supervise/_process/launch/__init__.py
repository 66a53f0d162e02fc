"""Start of processes: programs by posix_spawn, functions by spawn, fork and fork server, and the code in the child."""
