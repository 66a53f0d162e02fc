"""Lifeline and gate.

The lifeline kills the ranks when the host dies. The gate holds a program until its lifeline is armed.
"""
