"""The components of the loss, and their sum."""
