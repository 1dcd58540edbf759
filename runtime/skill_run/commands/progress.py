"""A progress bar on standard error for the events of a worker."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any


@contextmanager
def progress(*, shown: bool) -> Iterator[Callable[[Mapping[str, Any]], None]]:
    """Yield a function that takes a worker's events and shows them; without `shown` it does nothing.

    The bar is gone at the end, so that only results stay on the terminal.
    """
    if not shown:
        yield lambda event: None
        return
    from rich.console import Console
    from rich.markup import escape
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    columns = (
        SpinnerColumn(),
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("starting", total=None, visible=False)

        def take(event: Mapping[str, Any]) -> None:
            if event.get("event") == "progress":
                bar.update(
                    task,
                    description=escape(str(event.get("text", ""))),
                    completed=event.get("done", 0),
                    total=event.get("total"),
                    visible=True,
                )

        yield take
