"""From a folder to a search service: ``Index``, its stores, and serving. Start with ``Index``.

Names are imported when first used, so that the command line's ``--help`` does not wait for torch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from recollect.common import lazy_names

if TYPE_CHECKING:
    from recollect.search.addresses import open_store as open_store
    from recollect.search.exact_search import nearest as nearest
    from recollect.search.index import Index as Index, OtherModelError as OtherModelError
    from recollect.search.store_protocol import (
        Hit as Hit,
        IndexBusyError as IndexBusyError,
        Item as Item,
        Store as Store,
        StoreError as StoreError,
    )

__getattr__, __dir__, __all__ = lazy_names(__name__, __file__)
