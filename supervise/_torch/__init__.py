"""PyTorch's part of the API: both signatures of `start_processes`, its contexts and its handlers."""
