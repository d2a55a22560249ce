"""The process that owns the computer algebra: one JSON request a line in, one JSON answer a line out.

It may hang or eat memory on an expression, so it is never this process of the trainer: `math_pool` kills and replaces
it.
"""

from __future__ import annotations

import json
import logging
import resource
import sys

ADDRESS_SPACE = 4 << 30


def main() -> None:
    resource.setrlimit(resource.RLIMIT_AS, (ADDRESS_SPACE, ADDRESS_SPACE))
    logging.disable(logging.CRITICAL)
    from sdpo.grading.math_equality import Equality

    equality = Equality()
    for line in sys.stdin:
        request = json.loads(line)
        result = equality.texts(request["gold"], request["answer"])
        sys.stdout.write(json.dumps({"result": result}) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
