"""Finds out whether pods can mount a model's image: on every node that they may go to."""

import logging
import time
from collections.abc import Sequence

from pagefleet_api.service import InferenceService
from pagefleet_operator import render
from pagefleet_operator.apiserver.api_errors import Refused, Unavailable
from pagefleet_operator.apiserver.inquiry import Lister
from pagefleet_operator.facts.image_volumes import mounts_images
from pagefleet_operator.facts.observed import Body
from pagefleet_operator.kinds import NODE
from pagefleet_operator.plan.node_placing import may_hold

log = logging.getLogger(__name__)

_FRESH_S = 60.0


class ImageNodes:
    """Asks for nodes when that is to be decided. `everywhere`: this operator may look at them."""

    def __init__(self, lister: Lister, *, everywhere: bool) -> None:
        self._lister, self._everywhere = lister, everywhere
        self._nodes: Sequence[Body] = ()
        self._until_s = 0.0

    async def mount(self, service: InferenceService, live: Body | None) -> bool | None:
        """Whether all of them can, as of the latest minute; False where none is there yet, or they cannot be seen.

        A copy is slower, and works everywhere. Of pods that the `live` workload makes already, nothing is asked. None
        while the API server is too busy for an answer: what is decided stays, so that must decide nothing.
        """
        if not service.spec.model.in_image or not self._everywhere or render.made_of(service, live):
            return False
        try:
            seen = await self._seen()
        except Unavailable as error:
            log.warning("nodes_unknown", extra={"error": str(error)})
            return None
        able = [mounts_images(node) for node in seen if may_hold(node, service)]
        return bool(able) and all(able)

    async def _seen(self) -> Sequence[Body]:
        if time.monotonic() >= self._until_s:
            try:
                self._nodes = await self._lister.items(NODE, None)
            except Refused as error:
                log.warning("nodes_refused", extra={"error": str(error)})
                self._nodes = ()
            self._until_s = time.monotonic() + _FRESH_S
        return self._nodes
