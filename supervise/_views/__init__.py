"""Views of runs, live and past, from their files and control sockets: nothing here knows a gang."""
