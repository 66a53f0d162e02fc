"""A plugin of pytest: of all tests that it collects, run a sample of those that prove a row about processes.

Of rows O, D, S and K those in the variable ``SAMPLED_ROWS``, such as ``dsk``. Of each test, the first case for a
binary, and the first for a function, by spawn and by fork server in turn; also the first of those with a SIGKILL. Of
the rows in `WHOLE`, every case of these.
"""

import os
import re

ROW = re.compile(rf"test_([{os.environ.get('SAMPLED_ROWS') or 'odsk'}]\d+)_")
METHODS = ("spawn", "forkserver")
KINDS = {"binary", "fork", *METHODS}
WHOLE = {"k1"}
SHARED = {"o11"}
"""Rows about what all processes of the machine share: several runs at once would disturb each other."""
TOO_LONG = {
    "test_k6_a_server_that_is_gone_and_cannot_be_seen_to_be_is_waited_for_in_vain_not_for_ever",
    "test_o6_a_value_of_one_gibibyte_arrives_whole",
    "test_s11_a_worker_cannot_wait_for_the_user",  # nothing in it depends on the kernel's newer services
}


def pytest_collection_modifyitems(config, items):
    """Keep the sample."""
    tests, seen, kept, rest = [], set(), [], []
    for item in items:
        row, test = ROW.match(item.name), item.nodeid.partition("[")[0]
        if row and test not in tests:
            tests.append(test)
        words = set(item.callspec.id.split("-")) if hasattr(item, "callspec") else set()
        kind = min(words & KINDS, default="none")
        case = test, kind, "SIGKILL" in words
        wanted = row and item.originalname not in TOO_LONG and row[1] not in SHARED
        wanted = wanted and kind in {"binary", "none", METHODS[tests.index(test) % 2]}
        if wanted and (case not in seen or row[1] in WHOLE):
            seen.add(case)
            kept.append(item)
        else:
            rest.append(item)
    items[:] = kept
    config.hook.pytest_deselected(items=rest)
