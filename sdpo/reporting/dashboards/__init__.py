"""The same panels in Weights & Biases and in Trackio, as code."""
