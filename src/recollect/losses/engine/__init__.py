"""What all tiled losses share: the tile loop, soft ranks, smooth steps, SiMix.

``tile_loop`` (the one loop and the one autograd function, and who is positive to whom) → a term: ``soft_rank`` (ranks, by
``steps``), or whole lists of similarities (``losses/average_precision.py``). ``simix`` enlarges the batch. Losses are a few
lines on a term.
"""
