"""The page of `bray view`: trials side by side, the running system, versions, episodes, the log.

`server` opens the port and `access_control` decides who may ask; `pages` answers the browser from
what `project` and the modules beside it read of a trial's files; `static/` is the page itself.
Nothing here writes into a trial. Only the builder writes template files and starts runs
(`builder`, `template_files`, `template_text`, `started_runs`), where `bray view` allows it.
"""
