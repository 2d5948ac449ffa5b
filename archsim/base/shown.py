"""How results show themselves in notebooks: their one line, and the first rows of their table."""

from html import escape
from typing import Any

MOST_ROWS, MOST_COLUMNS = 10, 12


class Shown:
    """Of a class with ``__repr__`` and ``to_pandas``, or with tables of which ``_shown`` is one."""

    def _shown(self) -> Any:
        """The frame that is shown; None: none."""
        return self.to_pandas()  # type: ignore[attr-defined]

    def _repr_html_(self) -> str:
        line, frame = f"<p><code>{escape(repr(self))}</code></p>", self._shown()
        if frame is None:
            return line
        more = f"<p>{len(frame):,} rows, {len(frame.columns)} columns</p>" if len(frame) > MOST_ROWS else ""
        return line + frame.head(MOST_ROWS).to_html(index=False, max_cols=MOST_COLUMNS, border=0, na_rep="–") + more
