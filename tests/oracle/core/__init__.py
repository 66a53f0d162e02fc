"""The old core, kept as an oracle while `supervise._core` is rewritten: same histories, same actions.

A copy of ``supervise/_core/`` (`decide`, `state`, `verdict`) and of what these use of ``supervise/messages.py`` and
``supervise/restarts.py``, as of commit 4d93fd7. Only the imports differ, and `restarts.RestartPolicy` does not check
its arguments. Nothing here imports `supervise` at run time, so a change of the package cannot change these answers.

Do not edit it. An intended difference between the old core and the new one belongs in `tests.oracle.twins`, by name.
The whole of ``tests/oracle/`` is deleted when the rewrite is done.
"""
