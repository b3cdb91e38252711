"""The page of `bray view`: trials side by side, the running system, versions, episodes, the log.

Read-only: nothing here writes into a trial. `project` and what lies beside it read the files of a
trial, `server` answers the browser, `static/` is the page.
"""
