"""Prompt files: every line is a row or is named with its number and the reason."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from distillspec.errors import UserError
from distillspec.tasks import EngineCounts, Row, read_prompts, read_valid_prompts, task_named


def counts(**changed: object) -> bytes:
    sound = {"calls": 2, "drafted": 4, "accepted": 1, "alone": 1, "seconds": 0.5}
    return json.dumps({"prompt": "a", "counts": {**sound, **changed}}).encode()


def write(folder: Path, content: str | bytes, name: str = "p.jsonl") -> Path:
    path = folder / name
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


def test_the_three_forms_of_a_row(tmp_path: Path) -> None:
    lines = [
        {"prompt": "a"},
        {"prompt": "b", "target": "B", "id": 7, "domain": "d", "other": [1]},
        {"input": "c", "target": "C", "id": "x"},
        {"messages": [{"role": "system", "content": "s"}, {"role": "user", "content": "u"}]},
        {
            "messages": [
                {"role": "user", "content": "u", "name": "n"},
                {"role": "assistant", "content": "answer"},
            ]
        },
    ]
    path = write(tmp_path, "\n".join(json.dumps(line) for line in lines) + "\n\n")
    assert read_prompts(path) == [
        Row("p.jsonl:1", "a"),
        Row("7", "b", "B", "d"),
        Row("x", "c", "C"),
        Row(
            "p.jsonl:4",
            ({"role": "system", "content": "s"}, {"role": "user", "content": "u"}),
        ),
        Row("p.jsonl:5", ({"role": "user", "content": "u"},), "answer"),
    ]


def test_text_is_one_prompt_a_line(tmp_path: Path) -> None:
    path = write(tmp_path, "one\n\n  two\r\nthree", "p.txt")
    assert [row.prompt for row in read_prompts(path)] == ["one", "  two", "three"]
    assert [row.id for row in read_prompts(path)] == ["p.txt:1", "p.txt:3", "p.txt:4"]


def test_a_compressed_file_reads_like_a_plain_one(tmp_path: Path) -> None:
    text = '{"prompt": "a"}\n{"prompt": "b"}\n'
    path = tmp_path / "p.jsonl.gz"
    path.write_bytes(gzip.compress(text.encode()))
    assert [row.prompt for row in read_prompts(path)] == ["a", "b"]
    path.write_bytes(gzip.compress(text.encode() * 1000)[:-20])
    with pytest.raises(UserError, match=r"p\.jsonl\.gz: cannot be read"):
        read_prompts(path)
    path.write_bytes(b"plain")
    with pytest.raises(UserError, match=r"p\.jsonl\.gz: cannot be read"):
        read_prompts(path)


def test_byte_order_mark_and_crlf_are_no_content(tmp_path: Path) -> None:
    path = write(tmp_path, b'\xef\xbb\xbf{"prompt": "a"}\r\n{"prompt": "b"}\r\n')
    assert [row.prompt for row in read_prompts(path)] == ["a", "b"]


def test_a_long_line_is_read(tmp_path: Path) -> None:
    path = write(tmp_path, json.dumps({"prompt": "x" * 10_000_000}))
    assert len(read_prompts(path)[0].prompt) == 10_000_000


BAD = [
    (b'{"prompt": "a"', "not JSON"),
    (b'{"prompt": "a', "not JSON: Unterminated string starting at column 12"),
    (b"plain words", "not JSON"),
    (b"[1, 2]", "expected a JSON object"),
    (b"null", "expected a JSON object"),
    (b'{"text": "a"}', "expected one of 'prompt', 'input' or 'messages', found none"),
    (b'{"prompt": "a", "input": "b"}', "'prompt' and 'input'"),
    (b'{"prompt": null}', "'prompt' must be a string, not null"),
    (b'{"prompt": 3}', "'prompt' must be a string, not int"),
    (b'{"prompt": ["a"]}', "'prompt' must be a string, not list"),
    (b'{"prompt": ""}', "'prompt' is empty"),
    (b'{"prompt": " \\n"}', "'prompt' is empty"),
    (b'{"prompt": "a", "target": null}', "'target' must be a string, not null"),
    (b'{"prompt": "a", "target": ""}', "'target' is empty"),
    (b'{"prompt": "a", "target": 1.5}', "'target' must be a string, not float"),
    (b'{"prompt": "a", "id": true}', "'id' must be a string, not bool"),
    (b'{"prompt": "a", "prompt": "b"}', "the key 'prompt' stands twice"),
    (b'{"prompt": "a\\u0000b"}', "'prompt' holds a NUL"),
    (b'{"prompt": "a\x00b"}', "NUL"),
    (b'{"prompt": "\\ud83d"}', "surrogate"),
    (b'{"prompt": "\xff"}', "not UTF-8 at byte 13"),
    (b'\xef\xbb\xbf{"prompt": "a"}', "not JSON"),  # a byte order mark inside the file is an error
    (b'{"prompt": ' + b"[" * 100_000, "not JSON"),
    (b'{"prompt": "a", "n": ' + b"9" * 5000 + b"}", "not JSON"),
    (
        b'{"prompt": "a", "counts": [1]}',
        "'counts' must have calls, drafted, accepted, alone and sec",
    ),
    (b'{"prompt": "a", "counts": {"calls": 1}}', "'counts' must have calls"),
    (counts(calls=-1), "must be whole numbers of at least 0"),
    (counts(accepted=1.5), "must be whole numbers of at least 0"),
    (counts(seconds=0), "seconds must be a number above 0"),
    (counts(seconds=float("nan")), "seconds must be a number above 0"),
    (counts(seconds=float("inf")), "seconds must be a number above 0"),
    (counts(more=1), "and no other key"),
    (b'{"messages": []}', "'messages' must be a non-empty list"),
    (b'{"messages": "a"}', "'messages' must be a non-empty list"),
    (b'{"messages": [{"role": "user"}]}', "message 1 must have 'role' and 'content'"),
    (b'{"messages": [{"role": "user", "content": null}]}', "message 1: 'content' must be"),
    (b'{"messages": [{"role": "assistant", "content": "a"}]}', "nothing to answer"),
    (
        b'{"target": "t", "messages": [{"role": "user", "content": "u"},'
        b' {"role": "assistant", "content": "a"}]}',
        "give one",
    ),
]


@pytest.mark.parametrize(("line", "reason"), BAD)
def test_an_invalid_line_is_named(line: bytes, reason: str, tmp_path: Path) -> None:
    path = write(tmp_path, b'{"prompt": "good"}\n' + line + b'\n{"prompt": "better"}\n')
    with pytest.raises(UserError) as caught:
        read_prompts(path)
    message = str(caught.value)
    assert "p.jsonl:2: " in message
    assert reason in message
    assert "\n" not in message
    assert len(message) < 400
    reading = read_valid_prompts(path)
    assert [row.prompt for row in reading.rows] == ["good", "better"]
    assert reason in reading.skipped[0]


def test_two_bad_lines_of_four_are_counted(tmp_path: Path) -> None:
    path = write(tmp_path, '{"prompt": "a"}\n{\n{"prompt": "b"}\n{"prompt": 1}\n')
    reading = read_valid_prompts(path)
    assert [row.prompt for row in reading.rows] == ["a", "b"]
    assert len(reading.skipped) == 2
    assert str(reading).startswith("4 lines read, 2 kept, 2 skipped")
    assert "p.jsonl:2: " in str(reading)
    assert str(read_valid_prompts(write(tmp_path, "a\n", "p.txt"))) == (
        "1 lines read, 1 kept, 0 skipped"
    )


def test_an_id_given_twice_is_named(tmp_path: Path) -> None:
    path = write(tmp_path, '{"prompt": "a", "id": 1}\n{"prompt": "b", "id": "1"}\n')
    with pytest.raises(UserError, match=r":2: the id '1'"):
        read_prompts(path)


def test_limit_stops_before_later_mistakes(tmp_path: Path) -> None:
    path = write(tmp_path, '{"prompt": "a"}\n{\n')
    assert len(read_prompts(path, limit=1)) == 1
    assert len(read_valid_prompts(path, limit=1).skipped) == 0
    with pytest.raises(UserError, match="at least 1"):
        read_prompts(path, limit=0)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("absent.jsonl", None, r"cannot be read: No such file"),
        ("stdlob", None, r"no such file or task; .*stdlib"),
        ("p.csv", "a,b", r"is not a prompt file; .*\.jsonl"),
        ("p.jsonl", "", r"no prompts"),
        ("p.txt", "\n \n", r"no prompts"),
    ],
)
def test_a_wrong_file_is_named(
    name: str, content: str | None, message: str, tmp_path: Path
) -> None:
    path = tmp_path / name
    if content is not None:
        path.write_text(content)
    with pytest.raises(UserError, match=message) as caught:
        read_prompts(path)
    assert name in str(caught.value)


def test_no_valid_line_is_an_error_even_when_skipping(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"none of 2 lines is valid.*p\.jsonl:1"):
        read_valid_prompts(write(tmp_path, "{\n{\n"))


def test_a_folder_is_no_prompt_file(tmp_path: Path) -> None:
    folder = tmp_path / "p.jsonl"
    folder.mkdir()
    with pytest.raises(UserError, match="cannot be read"):
        read_prompts(folder)


def test_the_stdlib_task_gives_whole_rows() -> None:
    rows = read_prompts("stdlib", limit=20)
    assert len(rows) == 20
    assert rows == read_prompts("stdlib", limit=30)[:20]
    for row in rows:
        assert isinstance(row.prompt, str)
        assert row.prompt.startswith("Explain what this function does:\n\n")
        assert "def " in row.prompt
        assert row.target
        assert ":" in row.id


FRAGMENTS = st.sampled_from(
    [
        b'{"prompt": "a"}',
        b"\xef\xbb\xbf",
        b"\r\n",
        b"\n",
        b"\x00",
        b'"',
        b"{",
        b"}",
        b"\\ud800",
        b":",
    ]
)


@settings(deadline=None, derandomize=True, max_examples=200)
@given(content=st.one_of(st.binary(max_size=60), st.lists(FRAGMENTS, max_size=8).map(b"".join)))
def test_any_bytes_give_rows_or_one_clear_line(
    content: bytes, tmp_path_factory: pytest.TempPathFactory
) -> None:
    for name in ("fuzz.jsonl", "fuzz.txt", "fuzz.jsonl.gz"):
        path = tmp_path_factory.getbasetemp() / name
        path.write_bytes(content)
        try:
            rows = read_prompts(path)
        except UserError as error:
            message = str(error)
        else:
            message = f"{name} read"
            assert all(isinstance(row.prompt, str) and row.prompt.strip() for row in rows)
        assert name in message
        assert "\n" not in message


def test_a_text_beside_ids_may_hold_whatever_a_model_wrote(tmp_path: Path) -> None:
    """The bug: `generate` wrote an answer with a NUL that no verb would read back."""
    line = b'{"prompt": "a", "target": "b\\u0000", "target_ids": [5, 0]}'
    (row,) = read_prompts(write(tmp_path, line))
    assert (row.target, row.target_ids) == ("b\0", (5, 0))


def test_what_an_engine_counted_is_read(tmp_path: Path) -> None:
    (row,) = read_prompts(write(tmp_path, counts()))
    assert row.counts == EngineCounts(2, 4, 1, 0.5, 1)


def test_a_task_is_told_from_a_file(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    task, data = task_named("gsm8k=rows.jsonl")
    assert (task.name, data) == ("gsm8k", Path("rows.jsonl"))
    task, data = task_named("bbh:snarks")
    assert (task.name, data) == ("bbh:snarks", None)
    assert task_named("rows.jsonl") is None
    assert task_named("a=b.jsonl") is None
    assert task_named("nowhere") is None
    (tmp_path / "stdlib").write_text("w1\n")
    assert task_named("stdlib") is None, "a file of that name comes first"
    with pytest.raises(UserError, match="did you mean 'snarks'"):
        task_named("bbh:snark")


def test_rows_of_a_task_in_a_file_get_its_prompt(tmp_path):
    file = tmp_path / "rows.jsonl"
    file.write_text('{"id": "a", "input": "How many?", "target": "#### 3"}\n')
    (row,) = read_prompts(f"gsm8k={file}")
    assert row.prompt.startswith("Q: How many?\nA: ")
