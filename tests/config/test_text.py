"""Files that users name: what is read, and the sentence for what is not."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from skill_run.config.text import parse_json, read_text
from skill_run.errors import InputError

LIMIT = 1024


def refusal(path: Path) -> str:
    with pytest.raises(InputError) as caught:
        read_text(path, LIMIT)
    return str(caught.value).replace(str(path), "FILE")


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (b"", ""),
        (b"a: 1\n", "a: 1\n"),
        (b"\xef\xbb\xbfa: 1\n", "a: 1\n"),
        ("\u4e2d\U0001f600".encode(), "\u4e2d\U0001f600"),
        (b"a\r\nb\r\n", "a\r\nb\r\n"),
        (b"x" * LIMIT, "x" * LIMIT),
    ],
    ids=["empty", "plain", "byte order mark", "unicode", "line breaks", "at the limit"],
)
def test_utf8_text_is_read_as_it_is(tmp_path: Path, data: bytes, text: str) -> None:
    file = tmp_path / "conf.yaml"
    file.write_bytes(data)
    assert read_text(file, LIMIT) == text


@pytest.mark.parametrize(
    ("data", "sentence"),
    [
        (b"a: \xe9\n", "FILE is not UTF-8 text (byte 3)"),
        ("a: 1\n".encode("utf-16"), "FILE is not UTF-8 text (byte 0)"),
        (b"\x80", "FILE is not UTF-8 text (byte 0)"),
        (b"\xed\xa0\x80", "FILE is not UTF-8 text (byte 0)"),
        (b"x" * (LIMIT + 1), "FILE is larger than 1 KiB, which no config is"),
    ],
    ids=["latin-1", "utf-16", "binary", "surrogate", "over the limit"],
)
def test_other_content_is_refused(tmp_path: Path, data: bytes, sentence: str) -> None:
    file = tmp_path / "conf.yaml"
    file.write_bytes(data)
    assert refusal(file) == sentence


def test_a_directory_is_refused(tmp_path: Path) -> None:
    assert refusal(tmp_path) == "FILE is a directory; name one config file"


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    assert refusal(tmp_path / "missing.yaml") == "FILE cannot be read: No such file or directory"


def test_a_path_below_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    assert refusal(tmp_path / "file" / "conf.yaml") == "FILE cannot be read: Not a directory"


def test_a_broken_link_is_refused(tmp_path: Path) -> None:
    link = tmp_path / "link.yaml"
    link.symlink_to(tmp_path / "gone")
    assert refusal(link) == "FILE cannot be read: No such file or directory"


def test_a_link_to_itself_is_refused(tmp_path: Path) -> None:
    link = tmp_path / "link.yaml"
    link.symlink_to(link)
    assert refusal(link).startswith("FILE cannot be read: ")


def test_a_named_pipe_is_refused_without_waiting_for_it(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    assert refusal(pipe) == "FILE is not a regular file"


@pytest.mark.parametrize("device", ["/dev/null", "/dev/zero"])
def test_a_device_is_refused(device: str) -> None:
    assert refusal(Path(device)) == "FILE is not a regular file"


def test_a_name_with_a_nul_character_is_refused() -> None:
    assert refusal(Path("a\0b")).startswith("FILE cannot be read: ")


@pytest.mark.parametrize(("text", "data"), [('{"a": [1, null, "x"]}', {"a": [1, None, "x"]}), ("3", 3), ("[]", [])])
def test_json_is_parsed(text: str, data: object) -> None:
    assert parse_json(text, "c.json") == data


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("", "c.json:1:1: not valid JSON: Expecting value"),
        ("{", "c.json:1:2: not valid JSON: Expecting property name enclosed in double quotes"),
        ('{\n  "a": 1 // note\n}', "c.json:2:10: not valid JSON: Expecting ',' delimiter"),
        ('{"a": 1} 2', "c.json:1:10: not valid JSON: Extra data"),
        ("[" * 100_000, "c.json: the JSON is nested too deep"),
        ('{"a":' * 100_000, "c.json: the JSON is nested too deep"),
        ('{"a": ' + "9" * 5000 + "}", "c.json: the JSON holds a number with too many digits"),
    ],
    ids=["empty", "open", "comment", "more", "deep lists", "deep mappings", "huge number"],
)
def test_bad_json_is_refused_with_place_and_reason(text: str, sentence: str) -> None:
    with pytest.raises(InputError) as caught:
        parse_json(text, "c.json")
    assert str(caught.value) == sentence
