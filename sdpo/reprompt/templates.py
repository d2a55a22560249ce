"""Text templates of the reprompt. Inserted text is data: its braces and backslashes mean nothing."""

from __future__ import annotations

from collections.abc import Sequence
from string import Formatter

from sdpo.config.schema import SelfDistillationConfig
from sdpo.errors import ConfigError, problem

# setting -> placeholders it may use, and whether it must use each of them
PLACEHOLDERS = {
    "reprompt_template": (("prompt", True), ("solution", False), ("feedback", False)),
    "solution_template": (("successful_previous_attempt", True),),
    "feedback_template": (("feedback_raw", True),),
}
_SECTION = "actor_rollout_ref.actor.self_distillation"


class Template:
    """One template, parsed once: literal text and named places.

    Written as for `str.format`: `{name}` is a place, `{{` and `}}` are braces. Nothing else of `str.format` is allowed.

    >>> Template("solution_template", "S: {successful_previous_attempt}").fill(successful_previous_attempt="{x}")
    'S: {x}'
    """

    def __init__(self, setting: str, text: str) -> None:
        field = f"{_SECTION}.{setting}"
        places = PLACEHOLDERS[setting]
        allowed = ", ".join(f"{{{name}}}" for name, _ in places)
        try:
            parts = list(Formatter().parse(text))
        except ValueError as error:
            fix = f"{error}; write {{{{ and }}}} for braces that are text"
            raise ConfigError(problem(field, text, f"text with {allowed}", fix)) from error
        self._parts: list[tuple[str, str | None]] = []
        for literal, name, spec, conversion in parts:
            if name is not None and (name not in dict(places) or spec or conversion):
                raise ConfigError(problem(field, _shown(name, spec, conversion), f"the placeholders {allowed}"))
            self._parts.append((literal, name))
        for name, required in places:
            if required and all(used != name for _, used in self._parts):
                raise ConfigError(problem(field, text, f"text with {allowed}", f"add {{{name}}}"))

    def fill(self, **values: str) -> str:
        return "".join(literal + ("" if name is None else values[name]) for literal, name in self._parts)


class Templates:
    """The three templates of the settings. Raises ConfigError for a placeholder that is unknown or missing."""

    def __init__(self, config: SelfDistillationConfig) -> None:
        self._reprompt = Template("reprompt_template", config.reprompt_template)
        self._solution = Template("solution_template", config.solution_template)
        self._feedback = Template("feedback_template", config.feedback_template)

    def user_message(self, prompt: str, demonstration: str | None, feedback: str | None) -> str:
        """The teacher's user message; a section without text is left out whole."""
        solution = "" if demonstration is None else self._solution.fill(successful_previous_attempt=demonstration)
        told = "" if feedback is None else self._feedback.fill(feedback_raw=feedback)
        return self._reprompt.fill(prompt=prompt, solution=solution, feedback=told)

    def hint(self, feedback: str) -> str:
        """The section that tells feedback, alone: for a turn in the middle of an episode."""
        return self._feedback.fill(feedback_raw=feedback).strip()


def check_templates(config: SelfDistillationConfig, names: Sequence[str] = tuple(PLACEHOLDERS)) -> None:
    """Raise ConfigError for the first template that cannot be used. For the checks at start: imports no torch."""
    for name in names:
        Template(name, getattr(config, name))


def _shown(name: str, spec: str | None, conversion: str | None) -> str:
    return "{" + name + (f"!{conversion}" if conversion else "") + (f":{spec}" if spec else "") + "}"
