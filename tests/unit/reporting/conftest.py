from tests.unit.tracking.conftest import config, make_group, read_jsonl, tab  # noqa: F401
