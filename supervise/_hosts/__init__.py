"""Gangs over several hosts: the driver's core and actor, what runs on each host, and the lease. Any engine."""
