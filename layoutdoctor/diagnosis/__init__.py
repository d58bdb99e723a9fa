"""The JSON contract: the diagnosis and its parts, as frozen values that are saved and loaded."""
