"""Effects on processes: launch, lifeline, exits, containment. No module here imports an actor."""
