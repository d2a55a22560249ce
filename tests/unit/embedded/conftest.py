from tests.unit.grading.conftest import code_grader, sandbox, weakest_sandbox  # noqa: F401
