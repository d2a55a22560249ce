"""Numbers on a command line."""

from __future__ import annotations

import argparse


def positive_whole(text: str) -> int:
    if (number := int(text)) < 1:
        raise argparse.ArgumentTypeError(f"{text}: it must be 1 or more")
    return number


def positive(text: str) -> float:
    if not 0 < (number := float(text)) < float("inf"):
        raise argparse.ArgumentTypeError(f"{text}: it must be more than 0")
    return number
