"""What is sent to be applied. Pure."""

import json
import re
from collections.abc import Mapping
from typing import Any

_ESCAPED = re.compile("[\x7f-\uffff]")


def apply_body(manifest: Mapping[str, Any]) -> str:
    """JSON that is YAML too, as an API server reads what is applied as YAML whatever its client meant.

    JSON escapes a character beyond the first 65,536, an emoji for one, as two, which YAML refuses (1.2, section 5.7);
    so it is written as itself. All others outside of ASCII are escaped: some of them are line breaks in YAML.
    """
    text = json.dumps(manifest, ensure_ascii=False)
    return _ESCAPED.sub(lambda found: f"\\u{ord(found[0]):04x}", text)
