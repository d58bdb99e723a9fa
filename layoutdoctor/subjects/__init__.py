"""The diagnosed model: loading, inputs, copies, applying a configuration, iterations, moving to another process."""
