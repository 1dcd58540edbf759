"""How a set-up is shown on standard error: a bar on a terminal, a line for each step elsewhere."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from skill_run.worker.packages import OnProgress, Progress


@contextmanager
def setup_progress(*, terminal: bool) -> Iterator[OnProgress]:
    """Yield a function that takes the progress of a set-up; the bar is gone at the end, sentences stay."""
    if not terminal:
        yield _Lines().take
        return
    from rich.console import Console
    from rich.markup import escape
    from rich.progress import BarColumn, DownloadColumn, TextColumn, TimeElapsedColumn
    from rich.progress import Progress as Bar

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.fields[packages]}"),
        DownloadColumn(),
        TimeElapsedColumn(),
    )
    with Bar(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("starting", total=None, packages="", visible=False)

        def take(progress: Progress) -> None:
            text = _printable(progress.text)
            if progress.note:
                bar.console.print(escape(text), highlight=False)
                return
            bar.update(
                task,
                description=escape(text),
                completed=progress.bytes_done,
                total=progress.bytes or None,
                packages=f"{progress.packages_done}/{progress.packages} packages",
                visible=True,
            )

        yield take


class _Lines:
    """Prints a line whenever another step begins."""

    def __init__(self) -> None:
        self._last = ""

    def take(self, progress: Progress) -> None:
        """Print the step, with how much is done, unless it is the one that was printed last."""
        if progress.text == self._last:
            return
        self._last = progress.text
        figures = ""
        if not progress.note and progress.packages:
            size = f", {progress.bytes_done / 1e6:.0f} of {progress.bytes / 1e6:.0f} MB" if progress.bytes else ""
            figures = f" ({progress.packages_done} of {progress.packages} packages{size})"
        click.echo(f"{_printable(progress.text)}{figures}", err=True)


def _printable(text: str) -> str:
    from skill_run.report.safe import printable

    return printable(text)
