"""Reads what was added to a JSONL file since the last look, while somebody else writes it."""

from pathlib import Path
from typing import Any

from pipeline.core.files import parse_lines


class Tail:
    """A place in a JSONL file: everything before it has been read."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.offset, self.num_lines, self.last = 0, 0, b""

    def read(self) -> list[dict[str, Any]]:
        """New records; all records if what was read last is no longer there: a resumed run cuts its file back."""
        if not self.path.exists():
            return []
        with self.path.open("rb") as file:
            file.seek(self.offset - len(self.last))
            if file.read(len(self.last)) != self.last:
                self.offset, self.num_lines, self.last = 0, 0, b""
                file.seek(0)
            content = file.read()
        content = content[: content.rfind(b"\n") + 1]
        records = parse_lines(content, self.path, self.num_lines + 1)
        if records:
            self.offset += len(content)
            self.num_lines += len(records)
            self.last = content.splitlines(keepends=True)[-1]
        return records
