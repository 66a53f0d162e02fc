"""pykka actors that share one selector thread: one loop serves messages, exits, timers and wake-ups of files."""
