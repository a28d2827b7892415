from pathlib import Path
from typing import NoReturn

PROGRAM: Path

def main() -> NoReturn: ...
