"""Specs whose fields do not go together: one for each rule about several, with the field and the whole refusal."""

from tests.pagefleet_api.together.case import Case as Case
from tests.pagefleet_api.together.engines import ENGINES
from tests.pagefleet_api.together.models import MODELS
from tests.pagefleet_api.together.models import NAMED as NAMED
from tests.pagefleet_api.together.scaling import SCALING
from tests.pagefleet_api.together.wholes import WHOLES

TOGETHER = (*ENGINES, *MODELS, *SCALING, *WHOLES)
