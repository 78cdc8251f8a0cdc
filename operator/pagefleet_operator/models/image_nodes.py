"""Finds out from the nodes whether pods can mount a model's image, and whether any node could take them at all."""

import asyncio
import logging
import time
from collections.abc import Sequence

from pagefleet_api.service import InferenceService
from pagefleet_operator import render
from pagefleet_operator.apiserver.api_errors import Refused, Unavailable
from pagefleet_operator.apiserver.inquiry import Lister
from pagefleet_operator.facts.evidence import essentials, takes_pods
from pagefleet_operator.facts.image_volumes import mounts_images
from pagefleet_operator.facts.observed import Body
from pagefleet_operator.kinds import NODE
from pagefleet_operator.plan.node_placing import holders

log = logging.getLogger(__name__)

_FRESH_S = 60.0
_LOOK_LIMIT_S = 15.0
"""Of one look, beyond which the API server counts as busy: passes over all services with such models wait for it."""


class ImageNodes:
    """Asks for nodes when that is to be decided. `everywhere`: this operator may look at them."""

    def __init__(self, lister: Lister, *, everywhere: bool) -> None:
        self._lister, self._everywhere = lister, everywhere
        self._nodes: Sequence[Body] = ()
        self._until_s = 0.0
        self._look: asyncio.Task[Sequence[Body] | None] | None = None

    async def mount(self, service: InferenceService, live: Body | None) -> bool | None:
        """Whether all of them can, as of the latest minute; False where none is there yet, or they cannot be seen.

        A copy is slower, and works everywhere. Of pods that the `live` workload makes already, nothing is asked. None
        while the API server is too busy for an answer: what is decided stays, so that must decide nothing.
        """
        if not service.spec.model.in_image or not self._everywhere or render.made_of(service, live):
            return False
        seen = await self._seen()
        if seen is None:
            return None
        able = [mounts_images(node) for node in holders(seen, [service])]
        return bool(able) and all(able)

    async def hold(self, service: InferenceService) -> bool | None:
        """Whether some node could take the service's pods, as of the latest minute; None where that cannot be told.

        How full nodes are does not matter.
        """
        seen = await self._seen() if self._everywhere else None
        return any(takes_pods(node) for node in holders(seen, [service])) if seen else None

    async def _seen(self) -> Sequence[Body] | None:
        """Passes that want to know at the same time share one look; it goes on when one of them is given up."""
        if time.monotonic() < self._until_s:
            return self._nodes
        if self._look is None or self._look.done():
            self._look = asyncio.create_task(self._asked())
        return await asyncio.shield(self._look)

    async def _asked(self) -> Sequence[Body] | None:
        """The nodes; None where the API server is too busy."""
        try:
            async with asyncio.timeout(_LOOK_LIMIT_S):
                self._nodes = [essentials(node) for node in await self._lister.items(NODE, None)]
        except Refused as error:
            log.warning("nodes_refused", extra={"error": str(error)})
            self._nodes = ()
        except (Unavailable, TimeoutError) as error:
            log.warning("nodes_unknown", extra={"error": str(error) or f"no answer within {_LOOK_LIMIT_S:.0f} s"})
            return None
        self._until_s = time.monotonic() + _FRESH_S
        return self._nodes
