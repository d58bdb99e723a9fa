"""What is diagnosed: loading, inputs, copies and weights, preparing a configuration, an iteration of it, travelling."""
