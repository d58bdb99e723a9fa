"""What the kernels of a recording prove."""
