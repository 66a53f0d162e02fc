"""The lifeline, which kills the ranks when the host dies, and the gate, which holds a program until it is armed."""
