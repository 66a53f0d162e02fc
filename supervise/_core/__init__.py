"""The decisions about a gang, as pure functions without threads, clocks, processes or pykka."""
