"""Drives DBOS: reads one command a line, answers one JSON object a line. Its workflows are of three steps without an effect, each
recorded durably: the same as the processes that are measured beside it."""
import concurrent.futures
import json
import logging
import os
import sys
import time
from importlib.metadata import version
from urllib.parse import unquote, urlsplit

from dbos import DBOS

THREADS = 16


def database(place):
    """The URL as its driver wants it: of a directory for a file, or of PostgreSQL with the socket's directory as host."""
    if "://" not in place:
        return "sqlite:///" + os.path.join(place, "dbos.db")
    url = urlsplit(place)
    account, _, host = url.netloc.rpartition("@")
    host, _, port = host.partition(":")
    return f"postgresql://{account}@{url.path}?host={unquote(host) or 'localhost'}&port={port or 5432}"


DBOS(config={"name": "lab", "system_database_url": database(sys.argv[1]), "sys_db_pool_size": THREADS,
             "log_level": "ERROR"})
logging.disable(logging.CRITICAL)


@DBOS.step()
def work(n):
    return n + 1


@DBOS.workflow()
def chain(n):
    for _ in range(3):
        n = work(n)
    return n


def run(seconds):
    end = time.perf_counter() + seconds

    def loop(_):
        steps = 0
        while time.perf_counter() < end:
            chain(0)
            steps += 3
        return steps

    start = time.perf_counter()
    with concurrent.futures.ThreadPoolExecutor(THREADS) as pool:
        steps = sum(pool.map(loop, range(THREADS)))
    return {"messages": steps, "seconds": time.perf_counter() - start}


def answer(command, *arguments):
    if command == "version":
        DBOS.launch()
        return {"version": f"{version('dbos')} (Python {sys.version.split()[0]})"}
    return run(float(arguments[0]))


# What DBOS prints is no answer.
answers, sys.stdout = sys.stdout, sys.stderr
for line in sys.stdin:
    try:
        print(json.dumps(answer(*line.split())), flush=True, file=answers)
    except Exception as error:
        print(json.dumps({"error": repr(error)}), flush=True, file=answers)
