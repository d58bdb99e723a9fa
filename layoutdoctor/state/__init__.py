"""What a diagnosis puts back: switches, dynamo's caches, random numbers, the process."""
