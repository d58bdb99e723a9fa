"""The work of the compiler as records: decisions, FX graphs, Inductor's buffers and kernels, eager operations."""
