# A consumer with psycopg that writes a row for each message in the transaction of its ack, until it is killed.
import sys

import psycopg

url, name = sys.argv[1:3]
READ = "SELECT token, message_offset, attempt, (payload ->> 'n')::bigint FROM headwater.read('effects', 'ledger', 10, 2)"

with psycopg.connect(url, autocommit=True, application_name=name) as db:
    while True:
        rows = db.execute(READ).fetchall()
        if not rows:
            wait_s = db.execute("SELECT wait_s FROM headwater.listen('effects', 'ledger')").fetchone()[0]
            rows = db.execute(READ).fetchall()
            if not rows:
                for _ in db.notifies(timeout=min(wait_s, 0.2), stop_after=1):
                    pass
        for token, offset, attempt, n in rows:
            db.execute("INSERT INTO delivered VALUES (%s, %s, %s)", [n, attempt, name])
            try:
                with db.transaction():
                    db.execute("INSERT INTO effect VALUES (%s, %s)", [n, name])
                    db.execute("SELECT headwater.ack(%s, ARRAY[%s])", [token, offset])
            except psycopg.Error as error:
                # The lease was lost: the row is rolled back, and another consumer has the message.
                if error.sqlstate not in ("HW020", "HW021"):
                    raise
