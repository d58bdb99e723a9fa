"""Facts that the kernels of a recording prove."""
