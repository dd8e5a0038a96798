# %% [markdown]
# # A shop's photos to a search service
# The tutorial of the same name as a script with cells: open it in an editor that runs cells, or turn it into a
# notebook with jupytext. It draws its own photos; put the path of a folder of yours in their place.

# %%
import logging
from pathlib import Path

import make_shop
from PIL import Image

import recollect

logging.basicConfig(level=logging.INFO, format="%(message)s")
make_shop.main(Path())


def sheet(paths: list[Path], columns: int = 6, side: int = 150) -> Image.Image:
    """Pictures side by side; the last value of a cell is shown below it."""
    rows = -(-len(paths) // columns)
    picture = Image.new("RGB", (columns * side, rows * side), "white")
    for number, path in enumerate(paths):
        with Image.open(path) as image:
            place = (number % columns * side, number // columns * side)
            picture.paste(image.convert("RGB").resize((side - 4, side - 4)), place)
    return picture


sheet(sorted(Path("photos").glob("*/0[0-2].jpg"))[:18])

# %% [markdown]
# ## Train
# Half of the products are held out, so that the verdict is about products the network has never seen.

# %%
settings = ["data.root=photos", "data.on_bad_image=skip"]
outcome = recollect.train("folder", settings=settings, out="runs/shop")
for verdict in outcome.verdicts.values():
    print(verdict.sentence())

# %% [markdown]
# ## Index and search

# %%
with recollect.Index.create("shop.index", "runs/shop") as index:
    index.sync("photos")
    for query in sorted(Path("new").glob("*.jpg")):
        matches = index.search(query, k=5)
        print(query.name, [(match.id, round(match.similarity, 2)) for match in matches])

# %% [markdown]
# The query first, then its neighbours:

# %%
with recollect.Index.open("shop.index") as index:
    query = Path("new/corto-jar.jpg")
    found = [query, *(Path("photos") / match.id for match in index.search(query, k=5))]
sheet(found).save("neighbours.png")
sheet(found)
