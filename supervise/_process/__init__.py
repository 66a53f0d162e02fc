"""Effects on processes: launch, lifeline, exit notice, outcome. Nothing here knows of actors."""
