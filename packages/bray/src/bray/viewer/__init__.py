"""The page of `bray view`: trials side by side, the running system, versions, episodes, the log.

Nothing here writes into a trial. `project` and what lies beside it read the files of a trial,
`server` answers the browser, `static/` is the page. The builder alone writes templates and starts
runs (`builder`, `drafts`, `settings_text`, `runs`), where `bray view` is told to let it.
"""
