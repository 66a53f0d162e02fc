"""Log output: reading the ranks' files, splitting it into lines, writing it to consoles and filtered files."""
