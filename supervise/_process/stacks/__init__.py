"""Stacks of running processes, from outside."""
