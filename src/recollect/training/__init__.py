"""From a configuration to a trained embedder. ``trainer.py`` is the way in; read it as a table of contents."""
