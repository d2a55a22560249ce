"""The process that owns the computer algebra: one JSON request a line in, one JSON answer a line out.

It may hang or eat memory on an expression, so it is never this process of the trainer: `math_pool` kills and replaces
it.
"""

from __future__ import annotations

import json
import logging
import resource
import sys
from typing import Any

ADDRESS_SPACE = 4 << 30


def main() -> None:
    resource.setrlimit(resource.RLIMIT_AS, (ADDRESS_SPACE, ADDRESS_SPACE))
    logging.disable(logging.CRITICAL)
    from math_verify import ExprExtractionConfig, LatexExtractionConfig, parse, verify

    targets = [LatexExtractionConfig(boxed_match_priority=-1), ExprExtractionConfig()]

    def read(text: str) -> list[Any]:
        """Math shifts make bare LaTeX readable. Time is limited from outside: the library's own alarm needs the main
        thread and swallows itself."""
        return parse(f"${text}$", targets, parsing_timeout=None, raise_on_error=False)

    def equal(gold: str, answer: str) -> bool:
        return bool(verify(read(gold), read(answer), timeout_seconds=None, raise_on_error=False))

    for line in sys.stdin:
        request = json.loads(line)
        if "check" in request:
            result = bool(read(request["check"]))
        else:
            result = equal(request["gold"], request["answer"])
        sys.stdout.write(json.dumps({"result": result}) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
