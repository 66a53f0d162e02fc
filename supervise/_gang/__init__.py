"""The actors of a gang: its Supervisor, one Worker a rank, one Tail a destination."""
