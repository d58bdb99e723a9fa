"""The recording: the raw observations of one trial, without torch; its file, and the readers that make recordings."""
