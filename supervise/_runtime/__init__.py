"""An actor type of pykka on one selector thread: inbox, exits, timers and file wake-ups in one loop."""
