from tests.unit.workers.conftest import actor_config, mini_batch, no_process_group, random_llama  # noqa: F401
