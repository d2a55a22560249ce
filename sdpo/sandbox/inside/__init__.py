"""What runs inside the fork server and its children. Standard library only, and nothing from the rest of the package:
the server imports these files alone, so the trainer's code is never within reach of a graded program."""
