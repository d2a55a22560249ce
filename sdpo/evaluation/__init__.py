"""After training: how good are these models on these problems, and which differences are more than chance?"""
