"""Protocols around training: the search of settings without test feedback, and the paper's claims as matrices of runs.

Read ``benches.py`` and ``claims.py`` for what is measured, ``matrix.py`` for how runs are done once and resumed,
``summary.py`` for how differences are judged, ``study_page.py`` for what is written. Nothing but ``cli`` imports this
room.
"""
