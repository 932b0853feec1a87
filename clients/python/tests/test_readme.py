"""The programs of the README run, one after the other, and print what it says."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
import threading
from pathlib import Path

from real import Server

README = Path(__file__).parent.parent / "README.md"


def test_programs_of_the_readme_print_what_it_says(server: Server) -> None:
    programs = re.findall(r"```python\n(.*?)```\n```text\n(.*?)```", README.read_text(), re.DOTALL)
    assert len(programs) == len(re.findall("```python", README.read_text())) == 5
    for program, expected in programs:
        assert run(program.replace("http://127.0.0.1:7411", server.url), expected) == expected


def run(program: str, expected: str) -> str:
    """Runs a program to its end; one that runs until it is stopped gets a signal once it has printed what is expected."""
    process = subprocess.Popen(
        [sys.executable, "-c", program], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stdout is not None and process.stderr is not None
    overdue = threading.Timer(60, process.kill)
    overdue.start()
    printed = ""
    try:
        while line := process.stdout.readline():
            printed += line
            if printed == expected and ".run()" in program:
                process.send_signal(signal.SIGTERM)
        errors = process.stderr.read()
        assert process.wait() == 0, errors
    finally:
        overdue.cancel()
        process.stdout.close()
        process.stderr.close()
    return printed
