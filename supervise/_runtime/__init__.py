"""pykka actors that share one selector thread.

One loop serves messages, exits, timers and the wake-ups of files.
"""
