"""The part of the API that is PyTorch's: both signatures of `start_processes`, its contexts, handlers and tail log."""
