"""What is diagnosed: loading a model, its inputs, and preparing copies for a configuration."""
