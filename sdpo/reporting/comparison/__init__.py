"""Runs on the same task side by side: started, measured within equal budgets, drawn."""
