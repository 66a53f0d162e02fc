"""Gangs over several hosts, for any engine.

This room has the driver's core and actor, the part that runs on each host, and the lease.
"""
