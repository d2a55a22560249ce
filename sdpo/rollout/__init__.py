"""Inference engines behind one protocol (`engine.RolloutEngine`): vLLM, Hugging Face, scripted."""
