"""Every decision about a gang, as pure functions: no thread, clock, process or pykka."""
