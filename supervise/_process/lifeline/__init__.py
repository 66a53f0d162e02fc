"""No process outlives the host: the lifeline, and the gate that a program waits at until it is armed."""
