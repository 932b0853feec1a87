"""Drives litequeue: reads one command a line, answers one JSON object a line."""
import json
import os
import sqlite3
import sys
import time

import litequeue

PAYLOAD = "x" * 100
queue = litequeue.LiteQueue(os.path.join(sys.argv[1], "litequeue.db"))
# The same durability as Headwater's publishing; litequeue itself sets NORMAL.
queue.conn.execute("PRAGMA synchronous = FULL")


def timed(seconds, step):
    start, done = time.perf_counter(), 0
    while True:
        count = step()
        done += count
        elapsed = time.perf_counter() - start
        if elapsed >= seconds or count == 0:
            return {"messages": done, "seconds": elapsed}


def put():
    queue.put(PAYLOAD)
    return 1


def put_batch():
    with queue.transaction():
        for _ in range(100):
            queue.put(PAYLOAD)
    return 100


def pop_done():
    message = queue.pop()
    if message is None:
        return 0
    queue.done(message.message_id)
    return 1


def answer(command, *arguments):
    if command == "version":
        return {"version": f"{litequeue.__version__} (SQLite {sqlite3.sqlite_version}, Python {sys.version.split()[0]})"}
    if command == "fill":
        with queue.transaction():
            for _ in range(int(arguments[0])):
                queue.put(PAYLOAD)
        return {}
    works = {"put": put, "put_batch": put_batch, "pop_done": pop_done}
    return timed(float(arguments[0]), works[command])


for line in sys.stdin:
    try:
        print(json.dumps(answer(*line.split())), flush=True)
    except Exception as error:
        print(json.dumps({"error": repr(error)}), flush=True)
