"""Before training: can this model, on this task, learn from what its teacher would be shown?"""
