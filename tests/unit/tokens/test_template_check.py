"""A chat template that does not put into the prompt what it is given, or does not end, is found before training."""

from __future__ import annotations

import copy
import logging

import pytest

from sdpo.errors import DataError, ModelError
from sdpo.records import Prompt
from sdpo.tokens import template_check, template_trial
from sdpo.tokens.chat import ChatRenderer
from sdpo.tokens.template_check import check_template

HEADER = "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
TURNS = "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content | trim }}<|im_end|>\n{% endfor %}"
LLAMA2 = (
    "{{ bos_token }}{% for m in messages %}{% if m.role == 'user' %}[INST] {{ m.content }} [/INST]"
    "{% else %} {{ m.content }} {{ eos_token }}{% endif %}{% endfor %}"
)


@pytest.fixture
def in_this_process(monkeypatch) -> None:
    """The same cases without the second it takes to start another process."""

    def answered(chat, cases):
        special = {name: str(token) for name, token in chat.tokenizer.special_tokens_map.items()}
        asked = {"cases": cases, "special_tokens": special, "template": cases["asked"]["template"]}
        answer = template_trial.answer(asked)
        return answer["cases"], answer["variables"]

    monkeypatch.setattr(template_check, "_try", answered)


def renderer(tokenizer, template: str, **options) -> ChatRenderer:
    tokenizer = copy.deepcopy(tokenizer)
    tokenizer.chat_template = template
    return ChatRenderer(tokenizer, options)


GOOD = {
    "ChatML": TURNS + HEADER,
    "Llama 2, whose cue ends the question": LLAMA2,
    "always a header": "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}assistant: ",
    "something else without header": TURNS + "{{ '<|im_start|>assistant\n' if add_generation_prompt else 'bye' }}",
    "only the last turn's thoughts": TURNS.replace("m.content", "m.content.split('</think>')[-1]") + HEADER,
    "no system": "{% if messages[0].role == 'system' %}{{ raise_exception('no') }}{% endif %}" + TURNS + HEADER,
    "one turn only": "{% if messages | length > 1 %}{{ raise_exception('no') }}{% endif %}" + TURNS + HEADER,
}


@pytest.mark.usefixtures("in_this_process")
@pytest.mark.parametrize("name", GOOD)
def test_templates_that_say_everything_pass(chatml_tokenizer, name: str) -> None:
    check_template(renderer(chatml_tokenizer, GOOD[name]))


BAD = {
    "a constant": ("hello" + HEADER, "leaves out what the user says$"),
    "no content": ("{% for m in messages %}{{ m.role }}{% endfor %}" + HEADER, "leaves out what the user says"),
    "content under another name": (TURNS.replace("m.content", "m.text") + HEADER, "leaves out what the user says"),
    "the first turn only": (TURNS.replace("in messages", "in messages[:1]") + HEADER, "says last in a conversation"),
    "the system only": (TURNS.replace("in messages", "in messages if m.role == 'system'"), "leaves out"),
    "no header": (TURNS, "does not begin the response: '<|im_start|>assistant' stands before an answer"),
    "no header in another form": (
        "{% for m in messages %}<|{{ m.role }}|>\n{{ m.content }}</s>\n{% endfor %}",
        "'<|assistant|>' stands before an answer",
    ),
    "division": ("{{ 1 // 0 }}" + TURNS + HEADER, "ZeroDivisionError"),
    "division by a message": ("{{ 1 // (messages | length - 1) }}" + TURNS + HEADER, "ZeroDivisionError"),
    "what is not there": ("{{ messages[0].parts[0].text }}", "UndefinedError"),
    "a syntax error": ("{% for m in messages %}{{ m.content }}", "TemplateSyntaxError"),
    "an unknown filter": ("{{ messages | shout }}", "TemplateAssertionError"),
    "recursion": ("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}", "RecursionError"),
    "the sandbox": ("{{ messages.__class__.__mro__ }}", "SecurityError"),
    "too large a range": ("{% for i in range(10 ** 9) %}x{% endfor %}", "OverflowError"),
    "too long a text": ("{% for i in range(99999) %}{{ 'a' * 99 }}{% endfor %}", "makes 9899901 characters"),
}


@pytest.mark.usefixtures("in_this_process")
@pytest.mark.parametrize("name", BAD)
def test_templates_that_leave_something_out_or_fail_are_refused_in_one_line(chatml_tokenizer, name: str) -> None:
    template, why = BAD[name]
    with pytest.raises(ModelError) as refused:
        check_template(renderer(chatml_tokenizer, template))
    assert why.rstrip("$") in str(refused.value) and "\n" not in str(refused.value)


ENDLESS = {
    "nested loops": "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}",
    "a constant of ten billion characters": "{{ 'a' * 10 ** 10 }}",
    "a text that doubles": "{% set n = namespace(t='a') %}{% for i in range(60) %}{% set n.t = n.t * 2 %}{% endfor %}",
}


@pytest.mark.parametrize("name", ENDLESS)
def test_a_template_has_its_time_and_memory(chatml_tokenizer, name: str, monkeypatch) -> None:
    monkeypatch.setattr(template_check, "CPU_SECONDS", 1)
    with pytest.raises(ModelError, match="does not come to an end|MemoryError") as refused:
        check_template(renderer(chatml_tokenizer, ENDLESS[name] + TURNS + HEADER))
    assert "\n" not in str(refused.value)


def test_a_good_template_passes_in_its_own_process(chatml_tokenizer) -> None:
    check_template(ChatRenderer(chatml_tokenizer, {"enable_thinking": False}))


@pytest.mark.usefixtures("in_this_process")
@pytest.mark.parametrize("option", ["enable_thinkin", "tools", "add_generation_prompt", "chat_template", "messages"])
def test_an_option_that_the_template_does_not_read_is_refused_with_those_it_reads(chatml_tokenizer, option) -> None:
    chat = ChatRenderer(chatml_tokenizer, {"enable_thinking": False})
    chat.template_kwargs[option] = option != "enable_thinkin"
    with pytest.raises(ModelError, match=f"got '{option}'; allowed: options .*: enable_thinking"):
        check_template(chat)


@pytest.mark.usefixtures("in_this_process")
def test_switching_off_what_the_template_does_not_have_needs_no_word(chatml_tokenizer, caplog) -> None:
    """Every root does it."""
    with caplog.at_level(logging.WARNING):
        check_template(renderer(chatml_tokenizer, TURNS + HEADER, enable_thinking=False))
    assert caplog.text == ""


@pytest.mark.usefixtures("in_this_process")
@pytest.mark.parametrize(
    ("text", "value", "warns"),
    [
        ("{% if fast %}{% endif %}", True, True),
        ("{% if fast %}x{% endif %}", True, False),
        ("{% if fast %}x{% endif %}", False, False),
        ("{{ fast }}", "high", False),
        ("{% if tools and fast %}{{ tools }}{% endif %}", True, False),
        ("{% set slow = fast %}", 3, True),
    ],
)
def test_an_option_without_effect_is_named(chatml_tokenizer, caplog, text: str, value, warns: bool) -> None:
    with caplog.at_level(logging.WARNING):
        check_template(renderer(chatml_tokenizer, text + TURNS + HEADER, fast=value))
    assert ("apply_chat_template_kwargs.fast: no effect" in caplog.text) is warns


def prompt(**fields) -> Prompt:
    fields.setdefault("messages", ({"role": "user", "content": "Hello big world"},))
    return Prompt("u", data_source="x", **fields)


def test_a_row_whose_tools_the_template_ignores_is_refused(chatml_tokenizer) -> None:
    tools = ({"type": "function", "function": {"name": "get_weather", "description": "d"}},)
    ChatRenderer(chatml_tokenizer).student_ids(prompt(tools=tools))
    said = ({"role": "user", "content": "Ask get_weather"},)
    only_first = "{{ tools[0] | tojson if tools }}" + TURNS + HEADER
    for template, given in ((TURNS + HEADER, tools), (only_first, (*tools, {"name": "get_time"}))):
        with pytest.raises(DataError, match="leaves out the tools"):
            renderer(chatml_tokenizer, template).student_ids(prompt(tools=given, messages=said))


@pytest.mark.usefixtures("in_this_process")
def test_an_option_of_a_row_that_the_template_does_not_read_is_refused(chatml_tokenizer) -> None:
    chat = ChatRenderer(chatml_tokenizer)
    check_template(chat)
    chat.student_ids(prompt(template_kwargs={"enable_thinking": True}))
    with pytest.raises(DataError, match="does not read the option 'think' .it reads enable_thinking."):
        chat.student_ids(prompt(template_kwargs={"think": True}))


@pytest.mark.parametrize(
    ("template", "lost"),
    [
        ("{% for m in messages %}{{ m.content[:9] }}{% endfor %}", "world"),
        ("{% for m in messages %}{{ m.content | lower }}{% endfor %}", "Careful"),
        ("{{ messages[-1].content }}", "Careful"),
        ("{{ messages[0].content }}", "Hello"),
    ],
)
def test_a_row_of_which_the_template_leaves_out_something_is_refused(chatml_tokenizer, template, lost) -> None:
    said = ({"role": "system", "content": "Careful!"}, {"role": "user", "content": "Hello big world"})
    with pytest.raises(DataError, match=f"leaves out '{lost}"):
        renderer(chatml_tokenizer, template).student_ids(prompt(messages=said))


@pytest.mark.parametrize("text", ['a "quoted"\nline\t\\ and é', "  blanks \n\n between  ", "<|im_end|>x", "1 < 2 & 3"])
@pytest.mark.parametrize("how", ["m.content", "m.content | tojson", "m.content | trim"])
def test_a_template_may_quote_and_trim_what_it_is_given(chatml_tokenizer, text: str, how: str) -> None:
    said = ({"role": "user", "content": text},)
    template = "{% for m in messages %}{{ " + how + " }}{% endfor %}"
    assert renderer(chatml_tokenizer, template).student_ids(prompt(messages=said))


def test_looking_for_what_is_left_out_takes_one_pass_however_long_the_text(chatml_tokenizer) -> None:
    """Every word is another one, and none is found as it stands."""
    text = "\n".join(f'"w{i}"<|im_end|>' for i in range(3_000))
    template = "{% for m in messages %}{{ m.content | tojson }}{% endfor %}"
    assert renderer(chatml_tokenizer, template).student_ids(prompt(messages=({"role": "user", "content": text},)))
