"""What the compiler did: decisions, FX graphs, Inductor's buffers and kernels, and the operations of an eager run."""
