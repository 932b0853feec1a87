"""Drives honker: reads one command a line, answers one JSON object a line."""
import importlib.metadata
import json
import os
import sys
import time

import honker

PAYLOAD = "x" * 98  # 100 bytes once it is JSON.
database = honker.open(os.path.join(sys.argv[1], "honker.db"))
queue = database.queue("lab")


def claim_ack():
    jobs = queue.claim_batch("lab", 100)
    if not jobs:
        return 0
    acked = queue.ack_batch([job.id for job in jobs], "lab")
    assert acked == len(jobs), f"acked {acked} of {len(jobs)}"
    return acked


def timed(seconds, step):
    start, done = time.perf_counter(), 0
    while True:
        count = step()
        done += count
        elapsed = time.perf_counter() - start
        if elapsed >= seconds or count == 0:
            return {"messages": done, "seconds": elapsed}


def answer(command, *arguments):
    if command == "version":
        return {"version": importlib.metadata.version("honker")}
    if command == "fill":
        left = int(arguments[0])
        while left > 0:
            with database.transaction() as transaction:
                for _ in range(min(left, 10_000)):
                    queue.enqueue(PAYLOAD, tx=transaction)
            left -= 10_000
        return {}
    return timed(float(arguments[0]), {"claim_ack": claim_ack}[command])


for line in sys.stdin:
    try:
        print(json.dumps(answer(*line.split())), flush=True)
    except Exception as error:
        print(json.dumps({"error": repr(error)}), flush=True)
