"""Start processes: programs by posix_spawn, functions by spawn, fork and fork server, and how each begins."""
