"""The actors of a gang: its Supervisor, one Worker per rank, one Tail per destination."""
