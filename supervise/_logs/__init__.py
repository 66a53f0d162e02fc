"""Log output: it is read from the files of the ranks, split into lines, and written to consoles and filtered files."""
