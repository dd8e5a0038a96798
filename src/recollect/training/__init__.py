"""From a configuration to a trained embedder. Start with ``trainer.py``, which reads as a table of contents."""
