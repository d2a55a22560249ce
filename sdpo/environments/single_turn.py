"""One answer, graded. A short environment to read."""

from __future__ import annotations

from sdpo.environments.episode import Episode, Grading, Policy
from sdpo.records import Prompt


class SingleTurn:
    async def run(self, prompt: Prompt, policy: Policy, grade: Grading) -> Episode:
        answer = await policy.reply()
        return Episode(answer, await grade(answer))
