"""The live table of a run: readings of its ranks, and the screen that shows them."""
