"""The control socket: commands for a running gang over a Unix socket, and their client."""
