"""How fast `supervise` is, against the bare floor of the operating system and against others.

`python -m tests.benchmarks --help`. Every measurement runs in a fresh process (`driver`), the contenders
take turns, and all of them do the same tasks (`tasks`) through the same few calls (`job.Gang`).
"""
