"""Page of the server for a browser. It loads nothing from elsewhere, and no other page may."""

import base64
import hashlib
import re
from pathlib import Path

PAGE = Path(__file__).with_name("page.html").read_text(encoding="utf-8")


def _digests(tag: str) -> str:
    """Return the digests of the page's scripts or styles, by which a browser accepts them."""
    parts = re.findall(rf"<{tag}>(.*?)</{tag}>", PAGE, re.DOTALL)
    digests = [base64.b64encode(hashlib.sha256(part.encode()).digest()).decode() for part in parts]
    return " ".join(f"'sha256-{digest}'" for digest in digests)


CONTENT_SECURITY_POLICY = (
    f"default-src 'none'; script-src {_digests('script')}; style-src {_digests('style')}; "
    "img-src data: blob:; connect-src 'self'; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'none'"
)
