"""What it costs: rounds, profiled iterations, equality of outputs, memory, and the machine it is measured on."""
