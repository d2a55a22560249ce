from __future__ import annotations

import pytest

from sdpo.config.schema import SelfDistillationConfig
from sdpo.errors import ConfigError
from sdpo.reprompt.templates import Template, Templates, check_templates

DATA = "{prompt} {0} {{x}} {unclosed \\1 \\n $x %s }"


def test_the_default_templates_write_the_reference_texts() -> None:
    message = Templates(SelfDistillationConfig()).user_message("2+2?", "4", "got 5")
    assert message == (
        "2+2?\nCorrect solution:\n\n4\nThe following is feedback from your unsuccessful earlier attempt:\n\ngot 5"
        "\n\nCorrectly solve the original question."
    )


def test_a_missing_section_leaves_nothing_behind() -> None:
    templates = Templates(SelfDistillationConfig())
    assert templates.user_message("P", None, None) == "P\n\nCorrectly solve the original question."
    assert (
        templates.user_message("P", "S", None) == "P\nCorrect solution:\n\nS\n\nCorrectly solve the original question."
    )


def test_braces_and_backslashes_of_inserted_text_stay_as_they_are() -> None:
    message = Templates(SelfDistillationConfig()).user_message(DATA, DATA, DATA)
    assert message.count(DATA) == 3


def test_doubled_braces_in_a_template_are_braces() -> None:
    assert Template("feedback_template", "{{{feedback_raw}}}").fill(feedback_raw="a") == "{a}"


@pytest.mark.parametrize(
    ("setting", "text", "message"),
    [
        (
            "reprompt_template",
            "{prompt} {answer}",
            r"got '\{answer\}'; allowed: the placeholders \{prompt\}, \{solution\}",
        ),
        ("reprompt_template", "{solution}", r"add \{prompt\}"),
        ("reprompt_template", "{prompt!r}", r"got '\{prompt!r\}'"),
        ("reprompt_template", "{prompt:>9}", r"got '\{prompt:>9\}'"),
        ("reprompt_template", "{prompt} {", r"for braces that are text"),
        ("solution_template", "{}", r"got '\{\}'"),
        ("feedback_template", "nothing", r"add \{feedback_raw\}"),
        ("feedback_template", "{feedback_raw.x}", r"got '\{feedback_raw\.x\}'"),
    ],
)
def test_a_wrong_placeholder_is_refused_at_start(setting: str, text: str, message: str) -> None:
    config = SelfDistillationConfig(**{setting: text})
    with pytest.raises(ConfigError, match=message):
        check_templates(config)
    with pytest.raises(ConfigError, match=setting):
        Templates(config)
