"""A shell script to the commands it would run, with what can be told of their words; nothing is ever run.

shlex cannot serve here: it drops the difference between '$X' and "$X" and the line a word stands on. Only what launch
scripts use is read: quoting, variables and arrays, if/else on tests that can be told, loops and functions as "maybe".
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final, Literal

from skill_run.errors import InputError

MAX_CHARS: Final = 1024 * 1024
MAX_EXPANDED: Final = 4 * 1024 * 1024
MAX_NESTING: Final = 16
MAX_BLOCKS: Final = 64

# An unknown part of a word is written as MARK + name + MARK, where the name says what it depends on. A name has no
# character that means something to a shell, since marked text may be read again as the body of `bash -c`.
MARK: Final = "\0"
_OUTPUT: Final = "%output"
_MARKED = re.compile(f"{MARK}([^{MARK}]*){MARK}")

Status = Literal["run", "maybe", "skip"]

_PLAIN = re.compile(r"[^ \t\r\f\v\n\\'\"$`;&|<>()]+")
_DOUBLE_PLAIN = re.compile(r"[^\\\"$`]+")
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*|[0-9@*#?$!-]")
_ASSIGNMENT = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)(\+?)=")
_REDIRECT = re.compile(r"[0-9]*(?:<<<|<<-|<<|>>|>&|<&|&>>|&>|>\||<>|<|>)")
_OPERATOR = re.compile(r";;|&&|\|\||[;&|()]")
_BLANK = re.compile(r"(?:[ \t\r\f\v]|\\\r?\n)+")
_RESERVED: Final = {
    *("if", "then", "elif", "else", "fi", "for", "select", "while", "until", "do", "done", "case", "esac"),
    *("{", "}", "!", "function"),
}
_DECLARING: Final = {"export", "declare", "typeset", "local", "readonly"}


def unknown_name(text: str) -> str | None:
    """Return what the first unknown part of a word depends on, None for a word that is known."""
    found = _MARKED.search(text)
    return found.group(1) if found else None


def unknown_reason(text: str) -> str | None:
    """Return a clause that says what an unknown part of a word depends on, None for a word that is known."""
    name = unknown_name(text)
    if name is None:
        return None
    return "depends on the output of a command" if name == _OUTPUT else f"depends on the shell variable {name}"


def readable(text: str) -> str:
    """Return a word with its unknown parts shown as `$NAME`."""
    return _MARKED.sub(lambda part: "$(...)" if part.group(1) == _OUTPUT else f"${part.group(1)}", text)


def _marked(name: str) -> str:
    shown = re.sub(r"[^A-Za-z0-9_@%]", "_", name)[:40]
    return f"{MARK}{shown}{MARK}"


@dataclass(frozen=True, slots=True)
class Word:
    """One word of a command after expansion, with the place where it is written (from 1)."""

    text: str
    line: int
    column: int


@dataclass(frozen=True, slots=True)
class Command:
    """One simple command: its words, the variables set before it, and whether it surely runs."""

    words: tuple[Word, ...]
    environment: dict[str, str]
    status: Status


@dataclass(slots=True)
class _Part:
    """A piece of a word as written. kind `text` is literal; `variable` has a name and maybe a default."""

    kind: Literal["text", "variable", "unknown"]
    text: str
    quoted: bool
    default: list[_Part] | None = None
    each: bool = False


@dataclass(slots=True)
class _Token:
    kind: Literal["word", "operator", "array"]
    text: str
    start: int
    parts: list[_Part] = field(default_factory=list)
    items: list[_Token] = field(default_factory=list)


class _Lexer:
    """Splits shell text into tokens. `fail` raises with the line a construct starts on."""

    def __init__(self, text: str, name: str, depth: int = 0) -> None:
        if depth > MAX_NESTING:
            raise InputError(f"{name}: the shell text is nested deeper than {MAX_NESTING} levels")
        self.text = text
        self.name = name
        self.depth = depth
        self.at = 0
        self.pending_documents: list[str] = []
        self.newlines = [match.start() for match in re.finditer("\n", text)]

    def place(self, start: int) -> tuple[int, int]:
        line = bisect_right(self.newlines, start - 1) if start else 0
        begin = self.newlines[line - 1] + 1 if line else 0
        return line + 1, start - begin + 1

    def fail(self, start: int, what: str) -> InputError:
        return InputError(f"{self.name}:{self.place(start)[0]}: {what}")

    def tokens(self) -> Iterator[_Token]:
        while True:
            token = self.next_token()
            if token is None:
                return
            yield token

    def next_token(self) -> _Token | None:
        text = self.text
        while self.at < len(text):
            blank = _BLANK.match(text, self.at)
            if blank is not None:
                self.at = blank.end()
                continue
            start, char = self.at, text[self.at]
            if char == "\n":
                self.at += 1
                self.skip_documents()
                return _Token("operator", "\n", start)
            if char == "#":
                end = text.find("\n", self.at)
                self.at = len(text) if end < 0 else end
                continue
            redirect = _REDIRECT.match(text, self.at)
            if redirect is not None:
                self.at = redirect.end()
                self.redirect(redirect.group().lstrip("0123456789"))
                continue
            operator = _OPERATOR.match(text, self.at)
            if operator is not None:
                self.at = operator.end()
                return _Token("operator", operator.group(), start)
            return self.word_or_array()
        return None

    def redirect(self, operator: str) -> None:
        """Read the target of a redirection and drop it; remember where a here-document ends."""
        blank = _BLANK.match(self.text, self.at)
        if blank is not None:
            self.at = blank.end()
        parts = self.word_parts()
        if operator in ("<<", "<<-"):
            self.pending_documents.append("".join(part.text for part in parts))

    def skip_documents(self) -> None:
        for delimiter in self.pending_documents:
            while self.at < len(self.text):
                end = self.text.find("\n", self.at)
                line = self.text[self.at : end if end >= 0 else len(self.text)]
                self.at = len(self.text) if end < 0 else end + 1
                if line.strip() == delimiter:
                    break
        self.pending_documents.clear()

    def word_or_array(self) -> _Token:
        start = self.at
        parts = self.word_parts()
        if self.at == start:
            raise self.fail(start, f"{self.text[start]!r} cannot stand here")
        if self.text[self.at : self.at + 1] == "(" and len(parts) == 1 and not parts[0].quoted:
            head = _ASSIGNMENT.fullmatch(parts[0].text)
            if head is not None:
                self.at += 1
                return _Token("array", parts[0].text, start, items=self.array_items(start))
        return _Token("word", "", start, parts)

    def array_items(self, start: int) -> list[_Token]:
        items: list[_Token] = []
        while True:
            token = self.next_token()
            if token is None:
                raise self.fail(start, "the array opened here with '(' is not closed")
            if token.kind == "word":
                items.append(token)
            elif token.text == ")":
                return items
            elif token.text != "\n":
                raise self.fail(token.start, f"'{token.text}' cannot stand inside an array")

    def word_parts(self) -> list[_Part]:
        text = self.text
        parts: list[_Part] = []
        while self.at < len(text):
            char = text[self.at]
            plain = _PLAIN.match(text, self.at)
            if plain is not None:
                self.at = plain.end()
                parts.append(_Part("text", plain.group(), False))
            elif char == "\\":
                following = text[self.at + 1 : self.at + 2]
                self.at += 2
                if following != "\n":
                    parts.append(_Part("text", following, True))
            elif char == "'":
                parts.append(self.single_quoted())
            elif char == '"':
                parts += self.double_quoted()
            elif char == "$":
                parts.append(self.dollar(False))
            elif char == "`":
                parts.append(self.backticks(False))
            else:
                break
        return parts

    def single_quoted(self) -> _Part:
        start = self.at
        end = self.text.find("'", start + 1)
        if end < 0:
            raise self.fail(start, "the quote ' opened here is not closed")
        self.at = end + 1
        return _Part("text", self.text[start + 1 : end], True)

    def double_quoted(self) -> list[_Part]:
        start = self.at
        self.at += 1
        parts = [_Part("text", "", True)]
        text = self.text
        while self.at < len(text):
            char = text[self.at]
            plain = _DOUBLE_PLAIN.match(text, self.at)
            if plain is not None:
                self.at = plain.end()
                parts.append(_Part("text", plain.group(), True))
            elif char == '"':
                self.at += 1
                return parts
            elif char == "\\":
                following = text[self.at + 1 : self.at + 2]
                self.at += 2
                if following != "\n":
                    parts.append(_Part("text", following if following in '$`"\\' else "\\" + following, True))
            elif char == "$":
                parts.append(self.dollar(True))
            else:
                parts.append(self.backticks(True))
        raise self.fail(start, 'the quote " opened here is not closed')

    def backticks(self, quoted: bool) -> _Part:
        start = self.at
        end = self.text.find("`", start + 1)
        if end < 0:
            raise self.fail(start, "the ` opened here is not closed")
        self.at = end + 1
        return _Part("unknown", _OUTPUT, quoted)

    def dollar(self, quoted: bool) -> _Part:
        start = self.at
        following = self.text[start + 1 : start + 2]
        if following == "(":
            self.at = self.closing(start + 1, "(", ")")
            return _Part("unknown", _OUTPUT, quoted)
        if following == "{":
            self.at = self.closing(start + 1, "{", "}")
            return self.braced(self.text[start + 2 : self.at - 1], quoted)
        if following == "'" and not quoted:
            self.at += 1
            return self.single_quoted()
        name = _NAME.match(self.text, start + 1)
        if name is None:
            self.at += 1
            return _Part("text", "$", quoted)
        self.at = name.end()
        return _Part("variable", name.group(), quoted, each=name.group() == "@")

    def closing(self, start: int, opening: str, closing: str) -> int:
        """Return the position behind the bracket that closes the one at `start`."""
        depth = 0
        at = start
        text = self.text
        while at < len(text):
            char = text[at]
            if char == "\\":
                at += 2
                continue
            if char == "'" and opening == "(":
                end = text.find("'", at + 1)
                at = len(text) if end < 0 else end + 1
                continue
            depth += (char == opening) - (char == closing)
            at += 1
            if depth == 0:
                return at
        raise self.fail(start, f"the '{opening}' opened here is not closed")

    def braced(self, inner: str, quoted: bool) -> _Part:
        name = _NAME.match(inner)
        if name is None:
            return _Part("unknown", inner[:20], quoted)
        rest = inner[name.end() :]
        if rest in ("[@]", "[*]"):
            return _Part("variable", name.group(), quoted, each=rest == "[@]")
        if not rest:
            return _Part("variable", name.group(), quoted, each=name.group() == "@")
        default = re.match(r":?[-=]", rest)
        if default is None:
            # ${NAME:?message} stops the script when NAME is not set, so what follows sees a value.
            kind: Literal["variable", "unknown"] = "variable" if re.match(r":?\?", rest) else "unknown"
            return _Part(kind, name.group(), quoted)
        lexer = _Lexer(rest[default.end() :], self.name, self.depth + 1)
        parts: list[_Part] = []
        while lexer.at < len(lexer.text):
            before = lexer.at
            parts += lexer.word_parts()
            if lexer.at == before:
                parts.append(_Part("text", lexer.text[before], False))
                lexer.at += 1
        return _Part("variable", name.group(), quoted, default=parts)


@dataclass(slots=True)
class _Frame:
    """An open if, loop, case or group. taken: a branch before this one surely runs; unsure: one may run."""

    kind: str
    status: Status = "run"
    taken: bool = False
    unsure: bool = False


class Script:
    """The commands of a shell text and the variables it leaves behind.

    Raises InputError for quotes or brackets that are not closed and for text beyond the limits.
    """

    def __init__(self, text: str, name: str, variables: dict[str, str] | None = None, depth: int = 0) -> None:
        if len(text) > MAX_CHARS:
            raise InputError(f"{name}: a shell text of more than {MAX_CHARS // 1024} KiB is not read")
        self.variables: dict[str, str | list[str]] = dict(variables or {})
        self.exported: set[str] = set(variables or {})
        self.commands: list[Command] = []
        self._lexer = _Lexer(text, name, depth)
        self._budget = MAX_EXPANDED
        self._frames: list[_Frame] = []
        self._export_all = False
        # What the command before `&&`, `||` or `then` returned: True, False, or None when nobody can tell.
        self._result: bool | None = None
        self._assumed = False
        self._gate: Status = "run"
        self._negated = False
        self._run()

    def environment(self) -> dict[str, str]:
        """Return the exported variables whose values are known."""
        found = {}
        for name in sorted(self.exported):
            value = self.variables.get(name)
            if isinstance(value, str) and unknown_name(value) is None:
                found[name] = value
        return found

    def visible(self) -> dict[str, str]:
        """Return the exported variables, unknown parts included, as a child shell sees them."""
        return {
            name: value for name, value in self.variables.items() if name in self.exported and isinstance(value, str)
        }

    def _status(self) -> Status:
        statuses = [frame.status for frame in self._frames] + [self._gate]
        return "skip" if "skip" in statuses else "maybe" if "maybe" in statuses else "run"

    def _run(self) -> None:
        pending: list[_Token] = []
        for token in self._lexer.tokens():
            if token.kind != "operator":
                if not pending and self._reserved(token):
                    continue
                pending.append(token)
                continue
            if token.text == "(" and len(pending) == 1:
                # `name ()`: the body that follows runs only when the function is called.
                self._frames.append(_Frame("function", "maybe"))
                pending = []
            if pending:
                self._simple(pending)
                pending = []
            self._separate(token.text)
        if pending:
            self._simple(pending)

    def _separate(self, operator: str) -> None:
        if operator in ("&&", "||"):
            goes_on = self._result is (operator == "&&")
            if self._result is None:
                self._gate = "maybe"
            elif not goes_on:
                self._gate = "skip"
            elif self._assumed and operator == "||":
                self._gate = "maybe"
        elif operator not in ("|", "(", ")"):
            self._gate = "run"

    def _reserved(self, token: _Token) -> bool:
        """Handle a reserved word at the start of a command; True when it was one."""
        if len(token.parts) != 1 or token.parts[0].kind != "text" or token.parts[0].quoted:
            return False
        word = token.parts[0].text
        if word not in _RESERVED:
            return False
        frames = self._frames
        frame = frames[-1] if frames else None
        if len(frames) > MAX_BLOCKS:
            raise self._lexer.fail(token.start, f"blocks are nested deeper than {MAX_BLOCKS} levels")
        if word == "if":
            frames.append(_Frame("if"))
        elif word == "then" and frame is not None:
            known = None if self._assumed else self._result
            branch: Status = "maybe" if known is None else "run" if known else "skip"
            if frame.taken:
                branch = "skip"
            frame.status = "maybe" if frame.unsure and branch == "run" else branch
        elif word in ("elif", "else") and frame is not None:
            frame.taken = frame.taken or (frame.status == "run" and not frame.unsure)
            frame.unsure = frame.unsure or frame.status == "maybe"
            frame.status = "skip" if frame.taken else "maybe" if frame.unsure and word == "else" else "run"
        elif word in ("for", "select", "while", "until", "case"):
            frames.append(_Frame("loop" if word != "case" else "case", "maybe"))
        elif word in ("fi", "done", "esac"):
            if frames:
                frames.pop()
        elif word == "{":
            if frame is None or frame.kind != "function":
                frames.append(_Frame("group"))
        elif word == "}":
            if frame is not None and frame.kind in ("group", "function"):
                frames.pop()
        elif word == "!":
            self._negated = True
        self._gate = "run"
        return True

    def _simple(self, tokens: list[_Token]) -> None:
        """Expand and record one simple command, and apply the assignments it makes."""
        status = self._status()
        negated, self._negated = self._negated, False
        if status == "skip":
            return
        index = 0
        assigned: list[tuple[str, str | list[str], bool]] = []
        while index < len(tokens):
            found = self._assignment(tokens[index])
            if found is None:
                break
            assigned.append(found)
            index += 1
        words: list[Word] = []
        for token in tokens[index:]:
            if token.kind == "array":
                words.append(Word(token.text, *self._lexer.place(token.start)))
                continue
            place = self._lexer.place(token.start)
            words += [Word(text, *place) for text in self._fields(token.parts)]
        if not words:
            for name, value, append in assigned:
                self._assign(name, value, append, status)
            self._result, self._assumed = True, False
            return
        head = words[0].text
        if head in _DECLARING:
            self._declare(words[1:], head == "export", status, [t for t in tokens[index:] if t.kind == "array"])
            self._result, self._assumed = True, False
            return
        if head in ("unset", "read"):
            for word in words[1:]:
                self.variables.pop(word.text, None)
        elif head == "set" and any(word.text in ("-a", "-o") for word in words[1:]):
            self._export_all = any(word.text in ("-a", "allexport") for word in words[1:])
        self._result = _test([word.text for word in words])
        self._assumed = head not in ("[", "[[", "test", "true", "false")
        if self._assumed:
            self._result = True
        if negated:
            self._result = None if self._result is None or self._assumed else not self._result
        prefix = {name: value for name, value, _ in assigned if isinstance(value, str) and unknown_name(value) is None}
        self.commands.append(Command(tuple(words), prefix, status))

    def _assignment(self, token: _Token) -> tuple[str, str | list[str], bool] | None:
        if token.kind == "array":
            head = _ASSIGNMENT.match(token.text)
            assert head is not None
            items = [text for item in token.items for text in self._fields(item.parts)]
            return head.group(1), items, bool(head.group(2))
        if not token.parts or token.parts[0].quoted or token.parts[0].kind != "text":
            return None
        head = _ASSIGNMENT.match(token.parts[0].text)
        if head is None:
            return None
        first = _Part("text", token.parts[0].text[head.end() :], False)
        return head.group(1), self._joined([first, *token.parts[1:]]), bool(head.group(2))

    def _declare(self, words: list[Word], exports: bool, status: Status, arrays: list[_Token]) -> None:
        exports = exports or any(word.text.startswith("-") and "x" in word.text for word in words)
        for token in arrays:
            found = self._assignment(token)
            if found is not None:
                self._assign(*found, status)
        for word in words:
            head = _ASSIGNMENT.match(word.text)
            name = head.group(1) if head else word.text
            if head is not None and head.end() <= len(word.text) and not any(a.text == word.text for a in arrays):
                self._assign(name, word.text[head.end() :], bool(head.group(2)), status)
            if exports and not word.text.startswith("-"):
                self.exported.add(name)

    def _assign(self, name: str, value: str | list[str], append: bool, status: Status) -> None:
        old = self.variables.get(name)
        if append and isinstance(value, list):
            value = [*(old if isinstance(old, list) else []), *value]
        elif append and isinstance(value, str):
            value = (old if isinstance(old, str) else _marked(name) if old is None else "") + value
        if status == "maybe" and value != old:
            value = _perhaps(name, old, value)
        self._spend(len(value) if isinstance(value, str) else sum(map(len, value)))
        self.variables[name] = value
        if self._export_all:
            self.exported.add(name)

    def _spend(self, chars: int) -> None:
        self._budget -= chars
        if self._budget < 0:
            raise InputError(f"{self._lexer.name}: its variables expand to more than {MAX_EXPANDED // 1024} KiB")

    def _lookup(self, part: _Part) -> str | list[str]:
        value = self.variables.get(part.text)
        if part.default is not None and (value is None or value == ""):
            return self._joined(part.default)
        return _marked(part.text) if value is None else value

    def _joined(self, parts: list[_Part]) -> str:
        """Expand parts to one string, as an assignment does (no word splitting)."""
        pieces = []
        for part in parts:
            value = part.text if part.kind == "text" else _marked(part.text)
            if part.kind == "variable":
                found = self._lookup(part)
                value = found if isinstance(found, str) else " ".join(found)
            self._spend(len(value))
            pieces.append(value)
        return "".join(pieces)

    def _fields(self, parts: list[_Part]) -> list[str]:
        """Expand the parts of a word to the words it becomes: unquoted variables are split at white space."""
        fields: list[str] = []
        current: str | None = None
        for part in parts:
            if part.kind != "variable":
                text = part.text if part.kind == "text" else _marked(part.text)
                current = (current or "") + text
                continue
            found = self._lookup(part)
            pieces = [found] if isinstance(found, str) else found
            if part.quoted and not (part.each and isinstance(found, list)):
                pieces = [" ".join(pieces)]
            elif not part.quoted:
                pieces = [piece for text in pieces for piece in text.split()]
            self._spend(sum(map(len, pieces)) + len(pieces))
            for index, piece in enumerate(pieces):
                if index:
                    fields.append(current or "")
                    current = None
                current = (current or "") + piece
        if current is not None:
            fields.append(current)
        return fields


def _perhaps(name: str, old: str | list[str] | None, new: str | list[str]) -> str | list[str]:
    """Return what is sure of a variable that may or may not be set anew: what is only added to stays as a beginning."""
    if isinstance(old, str) and isinstance(new, str) and new.startswith(old):
        return old + _marked(name)
    if isinstance(old, list) and isinstance(new, list) and new[: len(old)] == old:
        return [*old, _marked(name)]
    return _marked(name)


def _test(words: list[str]) -> bool | None:
    """Return the result of `[ ... ]`, `[[ ... ]]` or `test` when its words tell it, None otherwise."""
    if words[0] in ("true", "false"):
        return words[0] == "true"
    if words[0] not in ("[", "[[", "test"):
        return None
    inner = words[1:-1] if words[-1] in ("]", "]]") else words[1:]
    inverted = inner[:1] == ["!"]
    inner = inner[1:] if inverted else inner
    if any(unknown_name(word) is not None for word in inner):
        return None
    result: bool | None = None
    if inner[:1] in (["-n"], ["-z"]) and len(inner) <= 2:
        empty = len(inner) < 2 or inner[1] == ""
        result = empty is (inner[0] == "-z")
    elif len(inner) == 3 and inner[1] in ("=", "==", "!="):
        result = (inner[0] == inner[2]) is (inner[1] != "!=")
    elif len(inner) == 3 and inner[1] in ("-eq", "-ne", "-gt", "-ge", "-lt", "-le"):
        result = _compare(inner[0], inner[1], inner[2])
    return result if result is None or not inverted else not result


def _compare(left: str, operator: str, right: str) -> bool | None:
    if not (re.fullmatch(r"-?[0-9]{1,18}", left) and re.fullmatch(r"-?[0-9]{1,18}", right)):
        return None
    sign = (int(left) > int(right)) - (int(left) < int(right))
    wanted = {"-eq": (0,), "-ne": (-1, 1), "-gt": (1,), "-ge": (0, 1), "-lt": (-1,), "-le": (-1, 0)}
    return sign in wanted[operator]
