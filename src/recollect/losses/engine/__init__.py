"""What all tiled losses share: the tile loop, soft ranks, smooth steps, SiMix.

``tile_loop`` (the one loop and the one autograd function) → a term: ``soft_rank`` (ranks, by ``comparison`` and ``steps``),
``rows`` (whole lists of similarities), ``calibration`` (pairs). ``layout`` says which items are positives of which queries,
``simix`` enlarges the batch. Losses (one file each, one folder up) are a few lines on a term.
"""
