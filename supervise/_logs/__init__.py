"""What the workers write, on its way to a console or a filtered file: lines, destinations, file watches."""
