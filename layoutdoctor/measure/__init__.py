"""Measures a configuration: times, profiles, equality of outputs, memory; and the machine that it is measured on."""
