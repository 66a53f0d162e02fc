"""Identification of the processes of a gang: groups, ancestry, control groups, escaped processes."""
