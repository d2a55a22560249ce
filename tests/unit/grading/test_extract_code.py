from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sdpo.grading.extract import extract_code, tagged


@pytest.mark.parametrize(
    "response",
    [
        "```python \nprint(1)\n```",
        "```python\r\nprint(1)\r\n```",
        "```py\nprint(1)\n```",
        "~~~python\nprint(1)\n~~~",
        "Text\n```Python3\nprint(1)\n```\nmore text",
        "```\nprint(1)\n```",
        "````python\nprint(1)\n````",
        "  ```python\nprint(1)\n  ```",
        "```python\nprint('draft, much longer than the final one')\n```\nFinal:\n```python\nprint(1)\n```",
        "```python\nprint(1)\n```\nIt prints\n```\n1\n```",
        "```python\nprint(1)\n```\n```text\nout\n```",
        "```python\nprint(1)\n```\n\n```\n",
    ],
)
def test_the_last_complete_python_block_is_the_program(response):
    assert extract_code(response).replace("\r", "") == "print(1)"


def test_backticks_inside_a_string_do_not_cut_the_program():
    program = "s = '''\n```not a fence'''\nprint(1)"
    assert extract_code(f"```python\n{program}\n```") == program
    program = "s = '''\n```\nexample\n```\n'''\nprint(1)"
    assert extract_code(f"```python\n{program}\n```") == program


def test_a_block_that_was_cut_off_is_no_answer_even_with_an_earlier_one():
    assert extract_code("```python\nprint(1)", truncated=True) is None
    assert extract_code("```python\nprint(0)\n```\nBetter:\n```python\nprint(1", truncated=True) is None


def test_a_forgotten_closing_fence_is_forgiven_when_the_response_ended_by_itself():
    assert extract_code("```python\nprint(1)") == "print(1)"
    assert extract_code("```python\nprint(1") is None


@pytest.mark.parametrize("response", ["", "print(1)", "no code here", "``` ", "```json\n{}\n```", "`print(1)`"])
def test_a_response_without_a_program_has_none(response):
    assert extract_code(response) is None


PROGRAM = """def f(x):
    if x:
        return '''
  text'''

    # more
    return [
        1,
    ]
print(f(1))"""
INFO_STRINGS = (
    "python",
    "py",
    "python3",
    "Python3.11",
    'python title="a.py"',
    "python {1,3} showLineNumbers",
    "{.python}",
    "{.python .numberLines}",
    "{#main .python}",
    "{python}",
    "python:main.py",
    "python,linenos",
    "python=",
    "ipython",
    "",
)
# Before the opening fence, before the program's lines, before the closing fence.
PLACES = (
    ("", "", ""),
    ("  ", "  ", "  "),
    ("    ", "    ", "    "),
    ("\t", "\t", "\t"),
    ("", "    ", ""),
    ("    ", "", "    "),
    ("1. ", "   ", "   "),
    ("- ", "  ", "  "),
    ("  - ", "    ", "    "),
    ("> ", "> ", "> "),
    ("> > ", "> > ", "> > "),
    (">   ", ">   ", ">   "),
)


@given(st.sampled_from(INFO_STRINGS), st.sampled_from(PLACES), st.sampled_from(["```", "~~~", "````"]))
def test_a_block_in_any_place_with_any_info_string_holds_the_same_program(info, place, marker):
    opening, inside, closing = place
    lines = "\n".join(inside + line if line else line for line in PROGRAM.split("\n"))
    response = f"Steps:\n\n{opening}{marker}{info}\n{lines}\n{closing}{marker}\n\nDone."
    assert extract_code(response) == PROGRAM


@pytest.mark.parametrize("info", ["text", "{.text}", "json", "output", "pycon", "{r}"])
def test_a_block_of_another_language_is_no_program(info):
    assert extract_code(f"```{info}\nprint(0)\n```") is None


def test_a_fence_deep_in_a_docstring_does_not_end_the_block():
    program = 'def f():\n    """\n    ```\n    f()\n    ```\n    """\n    return 1'
    assert extract_code(f"```python\n{program}\n```") == program


def test_a_program_that_does_not_parse_is_still_the_answer():
    assert extract_code("```python\nprint(\n```") == "print("


@pytest.mark.parametrize(
    ("response", "program"),
    [
        ("```\n" * 5000, ""),
        ("```python\n" * 3000, None),
        ("`" * 100_000, None),
        ("```python\n" + "(" * 50_000 + "\n```", "(" * 50_000),
    ],
    ids=["empty blocks", "fences that never close", "backticks", "brackets that never close"],
)
def test_hostile_text_has_the_program_that_its_fences_say(response, program):
    assert extract_code(response) == program


def test_only_the_last_of_many_open_tags_is_closed():
    assert tagged("<answer>" * 100_000, "answer") == []
    assert tagged("<answer>" * 100_000 + "B</Answer>", "answer") == ["B"]


@pytest.mark.parametrize(
    "opening", ["Here is the code: ```python\n", "```python\n", "Code:```\n", "Run **this**: ````py \n"]
)
@pytest.mark.parametrize(
    "closing", ["\n```", "```", "  ```", "\n``` Done.", "\n```Done it.", "\n``` text\n```text\nout\n```"]
)
def test_fences_that_share_their_line_with_text_count(opening, closing):
    closing = closing.replace("```", "````", 1) if "````" in opening else closing
    code = extract_code(opening + PROGRAM + closing)
    assert code is not None and code.rstrip() == PROGRAM
    assert extract_code(opening + PROGRAM + closing + "\nIt ends", truncated=True).rstrip() == PROGRAM


@pytest.mark.parametrize("place", [("- > ", "  > "), ("1. > ", "   > "), ("- > > ", "  > > ")])
def test_a_block_in_a_quote_in_a_list_loses_its_marks(place):
    lines = "\n".join(place[1] + line for line in PROGRAM.split("\n"))
    assert extract_code(f"Steps:\n\n{place[0]}```python\n{lines}\n{place[1]}```\n") == PROGRAM


def test_a_fence_behind_text_in_a_string_or_a_cut_block_ends_nothing():
    program = "s = '''Here: ```python\nx = 1```\n``` Done.\n'''\nprint(s)"
    assert extract_code(f"```python\n{program}\n```") == program
    assert extract_code("```python\nprint(0)\n```\nBetter:\n```python\ns = 'a```\nb", truncated=True) is None
    assert extract_code("```python\nx = 1\n# ends with ```\nb", truncated=True) is None
