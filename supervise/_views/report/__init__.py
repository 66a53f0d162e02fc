"""The report on a run: its history from the files of the run directory, as a page and as a trace."""
