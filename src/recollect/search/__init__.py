"""From a folder to a search service: ``Index``, its stores, and serving. Start with ``Index``.

Names are imported when first used, so that the command line's ``--help`` does not wait for torch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from recollect.common import lazy_names

if TYPE_CHECKING:
    from recollect.search.addresses import open_store
    from recollect.search.exact_search import nearest
    from recollect.search.index import Index, OtherModelError
    from recollect.search.store_protocol import Hit, IndexBusyError, Item, Store, StoreError

__all__ = [
    "Hit",
    "Index",
    "IndexBusyError",
    "Item",
    "OtherModelError",
    "Store",
    "StoreError",
    "nearest",
    "open_store",
]

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "Hit": "recollect.search.store_protocol",
        "Index": "recollect.search.index",
        "OtherModelError": "recollect.search.index",
        "IndexBusyError": "recollect.search.store_protocol",
        "Item": "recollect.search.store_protocol",
        "Store": "recollect.search.store_protocol",
        "StoreError": "recollect.search.store_protocol",
        "nearest": "recollect.search.exact_search",
        "open_store": "recollect.search.addresses",
    },
)
