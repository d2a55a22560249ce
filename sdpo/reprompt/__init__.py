"""What the teacher is shown: the problem again, with a sibling's solution and the grader's feedback."""
