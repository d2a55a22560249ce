from __future__ import annotations

import gzip
import json
import zlib
from pathlib import Path

import pytest
from jinja2 import TemplateError

from sdpo.config.schema import DataConfig
from sdpo.data.files import read_rows, write_parquet
from sdpo.data.load import Drop, load_prompts, select_prompts
from sdpo.errors import DataError
from sdpo.records import Prompt
from sdpo.tokens.chat import ChatRenderer

ROWS = [
    {"data_source": "x", "prompt": f"question {i}", "reward_model": {"ground_truth": str(i)}, "extra_info": None}
    for i in range(3)
]


def as_lines(rows: list) -> str:
    return "\n".join(map(json.dumps, rows)) + "\n"


def write(path: Path, text: str) -> str:
    path.write_text(text, encoding="utf-8")
    return str(path)


def files(folder: Path) -> list[str]:
    """The same rows in every format."""
    with gzip.open(folder / "e.jsonl.gz", "wt", encoding="utf-8") as file:
        file.write(as_lines(ROWS))
    write_parquet(ROWS, folder / "a.parquet")
    return [
        str(folder / "a.parquet"),
        write(folder / "b.json", json.dumps(ROWS, indent=1)),
        write(folder / "c.json", as_lines(ROWS)),
        write(folder / "d.jsonl", "\ufeff" + as_lines(ROWS).replace("\n", "\n\n")),
        str(folder / "e.jsonl.gz"),
        write(folder / "f.json", "\ufeff \n" + " " * 5000 + json.dumps(ROWS)),
        write(folder / "g.jsonl", "\n" * 5000 + as_lines(ROWS)),
    ]


@pytest.mark.parametrize("kind", range(7))
def test_every_format_gives_the_same_prompts(tmp_path: Path, kind: int) -> None:
    prompts = load_prompts([files(tmp_path)[kind]], DataConfig())
    assert [(p.messages[0]["content"], p.ground_truth) for p in prompts] == [
        (f"question {i}", str(i)) for i in range(3)
    ]


def test_a_flipped_byte_of_a_packed_file_ends_in_one_line(tmp_path: Path) -> None:
    path, causes = tmp_path / "a.jsonl.gz", set()
    good = gzip.compress(as_lines(ROWS).encode())
    for place in range(len(good)):
        path.write_bytes(good[:place] + bytes([good[place] ^ 0xFF]) + good[place + 1 :])
        try:
            load_prompts([str(path)], DataConfig())  # some bytes of the head mean nothing
        except DataError as error:
            assert str(path) in str(error) and "\n" not in str(error)
            causes.add(type(error.__cause__))
    assert zlib.error in causes


def test_a_damaged_parquet_file_ends_in_one_line(tmp_path: Path) -> None:
    path, causes = tmp_path / "a.parquet", set()
    write_parquet([row | {"prompt": row["prompt"] * 20} for row in ROWS], path)
    good = path.read_bytes()
    for place in range(4, len(good), 7):
        path.write_bytes(good[:place] + bytes([good[place] ^ 0xFF]) + good[place + 1 :])
        try:
            list(read_rows(path))
        except DataError as error:
            assert str(path) in str(error) and "\n" not in str(error)
            causes.add(type(error.__cause__))
    assert OSError in causes


def test_a_file_that_may_not_be_read_ends_in_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*given: object, **options: object) -> None:
        raise PermissionError(13, "Permission denied")

    path = Path(write(tmp_path / "a.jsonl.gz", ""))
    monkeypatch.setattr(gzip, "open", refuse)
    with pytest.raises(DataError, match="a.jsonl.gz: not readable as JSON: .*Permission denied"):
        list(read_rows(path))


@pytest.mark.parametrize(("before", "after", "part"), [("\n", "", "line 2"), ("[{}, ", "]", "element 2")])
def test_a_row_nested_too_deeply_ends_in_one_line(before: str, after: str, part: str, tmp_path: Path) -> None:
    deep = '{"a":' * 100_000 + "1" + "}" * 100_000
    path = write(tmp_path / "a.json", before + deep + after)
    with pytest.raises(DataError, match=f"{part}: nested too deeply"):
        list(read_rows(Path(path)))


@pytest.mark.parametrize("column", ["reward_model", "tools"])
def test_json_text_nested_too_deeply_names_the_row(column: str, tmp_path: Path) -> None:
    deep = "[" * 100_000 + "]" * 100_000
    value = {"ground_truth": deep, "encoding": "json"} if column == "reward_model" else deep
    with pytest.raises(DataError, match=f"row 1: {column}"):
        load_prompts([write(tmp_path / "a.jsonl", as_lines([ROWS[0] | {column: value}]))], DataConfig())


def test_uids_are_unique_over_files_even_when_their_names_are_equal(tmp_path: Path) -> None:
    for folder in ("x", "y"):
        (tmp_path / folder).mkdir()
    twice = [write(tmp_path / f / "train.jsonl", as_lines(ROWS)) for f in ("x", "y")]
    uids = [p.uid for p in load_prompts([*twice, twice[0]], DataConfig())]
    assert len(set(uids)) == 9 and uids[0] == "train/1-train:1"
    assert [p.uid for p in load_prompts(twice[:1], DataConfig(), "val")] == [
        "val/train:1",
        "val/train:2",
        "val/train:3",
    ]


def test_rows_with_the_same_text_have_different_ids(tmp_path: Path) -> None:
    path = write(tmp_path / "a.jsonl", as_lines([ROWS[0], ROWS[0]]))
    first, second = load_prompts([path], DataConfig())
    assert first.messages == second.messages and first.uid != second.uid


def test_max_samples_takes_the_first_rows_of_its_own_part(tmp_path: Path) -> None:
    path = write(tmp_path / "a.jsonl", as_lines(ROWS))
    config = DataConfig(train_max_samples=2, val_max_samples=1)
    assert [p.ground_truth for p in load_prompts([path], config, "train")] == ["0", "1"]
    assert [p.ground_truth for p in load_prompts([path], config, "val")] == ["0"]
    with pytest.raises(DataError, match="train_max_samples: got 0"):
        load_prompts([path], DataConfig(train_max_samples=0))


def test_the_prompt_column_can_have_another_name(tmp_path: Path) -> None:
    path = write(tmp_path / "a.jsonl", as_lines([{"data_source": "x", "messages": "hi"}]))
    assert load_prompts([path], DataConfig(prompt_key="messages"))[0].messages[0]["content"] == "hi"


def test_the_builtin_task_loads_by_name() -> None:
    train = load_prompts(["builtin://programs/hard/train"], DataConfig(train_max_samples=4))
    test = load_prompts(["builtin://programs/hard/test"], DataConfig(), "val")
    assert len(train) == 4 and train[0].data_source == "programs"
    assert not {p.uid for p in train} & {p.uid for p in test}


def test_two_builtin_splits_do_not_share_ids() -> None:
    both = ["builtin://programs/hard/test", "builtin://programs/easy/test"]
    uids = [p.uid for p in load_prompts(both, DataConfig())]
    assert len(set(uids)) == len(uids)


def test_an_unknown_builtin_task_names_the_known_ones() -> None:
    for name in ("builtin://programs/medium/train", "builtin://poems", "builtin://programs/hard"):
        with pytest.raises(DataError, match=r"data\.val_files: got .*builtin://programs/hard/train"):
            load_prompts([name], DataConfig(), "val")


def test_no_files_is_an_error() -> None:
    with pytest.raises(DataError, match=r"data\.train_files: got \[\]"):
        load_prompts([], DataConfig())


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"data\.train_files: got '.*gone\.parquet'; allowed: an existing file"):
        load_prompts([str(tmp_path / "gone.parquet")], DataConfig())


def test_unknown_kinds_of_file_are_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"a file that ends in \.parquet, \.json"):
        load_prompts([write(tmp_path / "a.csv", "a,b")], DataConfig())


@pytest.mark.parametrize(("name", "text"), [("a.jsonl", ""), ("a.json", "[]"), ("a.json", " \n\n")])
def test_an_empty_file_is_an_error(tmp_path: Path, name: str, text: str) -> None:
    with pytest.raises(DataError, match="the file holds no rows"):
        load_prompts([write(tmp_path / name, text)], DataConfig())


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("a.jsonl", json.dumps(ROWS[0]) + "\n{oops\n", r"a\.jsonl line 2: not valid JSON"),
        ("a.json", json.dumps(ROWS)[:-20], r"a\.json: not readable as JSON: element 3"),
        ("a.parquet", "text", r"a\.parquet: not a readable parquet file"),
        ("a.jsonl", json.dumps(ROWS[0]) + "\n7\n", r"a\.jsonl row 2: got int; a row must be an object"),
        ("a.jsonl", as_lines([*ROWS, {"data_source": "x"}]), r"a\.jsonl row 4: prompt: missing"),
    ],
)
def test_an_unreadable_row_is_named_by_file_and_number(tmp_path: Path, name: str, text: str, message: str) -> None:
    with pytest.raises(DataError, match=message):
        load_prompts([write(tmp_path / name, text)], DataConfig())


def test_a_table_with_mixed_types_says_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="store it as JSON text"):
        write_parquet([{"a": 1}, {"a": "x"}], tmp_path / "a.parquet")
    assert not list(tmp_path.iterdir())


TOOL = {"type": "function", "function": {"name": "get", "description": "word " * 30}}


@pytest.fixture(scope="module")
def chat(chatml_tokenizer) -> ChatRenderer:
    return ChatRenderer(chatml_tokenizer)


def prompt(uid: str, text: str, **changes) -> Prompt:
    return Prompt(uid, ({"role": "user", "content": text},), "x", **changes)


def test_the_length_filter_counts_template_tools_and_header(chat: ChatRenderer) -> None:
    plain, with_tool, long = prompt("a", "hi"), prompt("b", "hi", tools=(TOOL,)), prompt("c", "word " * 90)
    limit = len(chat.student_ids(plain))
    assert limit > len(chat.tokenizer.encode("hi"))
    selected = select_prompts([plain, with_tool, long], chat, DataConfig(max_prompt_length=limit))
    assert list(selected.prompts) == [plain]
    assert [(d.uid, d.field) for d in selected.dropped] == [("b", "prompt"), ("c", "prompt")]
    assert selected.summary().startswith("dropped 2 of 3 rows (2 for prompt): b: ")


def test_a_row_that_the_template_refuses_is_named(chat: ChatRenderer, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*given: object, **options: object) -> None:
        raise TemplateError("roles must alternate")

    monkeypatch.setattr(chat.tokenizer, "apply_chat_template", refuse)
    with pytest.raises(DataError, match=r"row train/x:7: chat template: cannot render .*roles must alternate"):
        select_prompts([prompt("train/x:7", "hi")], chat, DataConfig())


def test_a_prompt_over_the_limit_is_dropped_whole_never_cut_and_counted(chat: ChatRenderer) -> None:
    """Nothing is left of it that could be trained on with all of its answer cut away."""
    fits, long = prompt("a", "hi"), prompt("b", "word " * 50)
    selected = select_prompts([long, fits], chat, DataConfig(max_prompt_length=40))
    assert list(selected.prompts) == [fits] and len(selected.dropped) == 1
    assert f"{len(chat.student_ids(long))} tokens, more than 40" in selected.summary()


def test_nothing_is_said_when_all_prompts_can_be_used(chat: ChatRenderer) -> None:
    selected = select_prompts([prompt("a", "hi")], chat, DataConfig())
    assert len(selected.prompts) == 1 and selected.summary() == ""


def test_without_the_filter_the_first_overlong_prompt_is_an_error(chat: ChatRenderer) -> None:
    config = DataConfig(max_prompt_length=20, filter_overlong_prompts=False)
    with pytest.raises(DataError, match=r"prompt b: \d+ tokens, data\.max_prompt_length is 20"):
        select_prompts([prompt("a", "hi"), prompt("b", "word " * 90)], chat, config)


def test_a_filter_that_leaves_nothing_is_an_error(chat: ChatRenderer) -> None:
    with pytest.raises(DataError, match=r"max_prompt_length: got 1; allowed: at least \d+, the shortest of 1 prompts"):
        select_prompts([prompt("a", "hi")], chat, DataConfig(max_prompt_length=1))


def test_rows_that_nobody_can_grade_are_dropped_counted_and_listed_with_row_field_and_problem(chat) -> None:
    rows = [prompt(f"train/x:{i}", "hi", ground_truth=i) for i in range(9)]
    selected = select_prompts(rows, chat, DataConfig(), lambda p: f"gold {p.ground_truth}" if p.ground_truth else None)
    assert list(selected.prompts) == rows[:1]
    assert selected.dropped[0] == Drop("train/x:1", "reward_model.ground_truth", "gold 1")
    summary = selected.summary()
    assert summary.startswith("dropped 8 of 9 rows (8 for reward_model.ground_truth): train/x:1: gold 1; ")
    assert summary.endswith("; and 3 more")


def test_rows_of_which_none_can_be_graded_are_an_error(chat: ChatRenderer) -> None:
    with pytest.raises(DataError, match=r"row a: no tests; none of the 1 rows can be graded"):
        select_prompts([prompt("a", "hi")], chat, DataConfig(), lambda p: "no tests")
