from tests.unit.workers.conftest import actor_config, mini_batch, random_llama  # noqa: F401
