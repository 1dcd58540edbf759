"""A tokenising process: takes a job and chunks on standard input, answers with parts, ends when that is closed."""

from __future__ import annotations

import contextlib
import os
import pickle
import signal
import sys
from typing import BinaryIO

from skill_run.errors import SkillRunError
from skill_run.pack.samples.frames import read_frame, write_frame
from skill_run.pack.samples.work import Job, do_item, start_job


def serve(requests: BinaryIO, answers: BinaryIO) -> None:
    """Answer the job, then each chunk, with ("done", part or None) or ("error", exception); an error ends it."""
    job: Job = pickle.loads(read_frame(requests))
    try:
        converter = start_job(job)
        write_frame(answers, ("done", None))
        while frame := read_frame(requests):
            write_frame(answers, ("done", do_item(job, converter, pickle.loads(frame))))
    except (SkillRunError, MemoryError) as error:
        write_frame(answers, ("error", error))


def main() -> None:
    """Serve on the standard streams; an interrupt is the parent's to handle."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # The processes are the parallelism; threads of the tokenizer on top of them would only get in their way.
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "wb")
    with contextlib.suppress(BrokenPipeError, EOFError):
        serve(sys.stdin.buffer, answers)


if __name__ == "__main__":
    main()
