"""Views of runs, live and past, from their files and control sockets, without access to a gang."""
