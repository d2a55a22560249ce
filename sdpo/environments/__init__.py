"""What happens between a prompt and its grade: one answer, or an episode of several turns."""
