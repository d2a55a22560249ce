"""Ways to carry weights from the trainer to an inference engine, and the version check that goes with them."""
