"""Lifeline, which kills the ranks when the host dies, and gate, which holds a program until the lifeline is armed."""
