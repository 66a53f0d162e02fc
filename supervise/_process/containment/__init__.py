"""Which processes belong to a gang: groups, ancestry, control groups, and those that escaped."""
