"""What a user asks of a training, and what is wrong with it: before anything heavy is loaded.

Whatever does not fit ends in one line with the file, its line, the field and the way out.
"""

from __future__ import annotations

import argparse
import difflib
import importlib.util
import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from .why_not import FAMILIES

#: What a decoder layer of the tested families multiplies by.
MODULES = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")


class Wrong(Exception):
    """One line for the user; exit code 2."""


@dataclass(frozen=True, slots=True)
class Lora:
    """What of an adapter can be chosen."""

    r: int = 16
    alpha: int = 32
    dropout: float = 0.0
    modules: tuple[str, ...] = MODULES


@dataclass(frozen=True, slots=True)
class Row:
    """One sample of the data file."""

    line: int
    text: str | None
    messages: list[dict[str, str]] | None


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise Wrong(message)


def parser() -> argparse.ArgumentParser:
    """The command line, which ``tidegate finetune`` passes on. Its help is that of ``tidegate finetune --help``."""
    made = _Parser(prog="tidegate finetune", allow_abbrev=False, add_help=False)
    add = made.add_argument
    add("--model", type=Path, required=True)
    add("--data", type=Path, required=True)
    add("--out", type=Path, required=True)
    add("--lora", default="")
    add("--steps", type=_whole, default=100)
    add("--batch", type=_whole, default=4)
    add("--length", type=_whole, default=1024)
    add("--truncate", action="store_true")
    add("--rate", type=_rate, default=2e-4)
    add("--seed", type=int, default=0)
    add("--save-every", type=_whole, default=50)
    add("--device", choices=("cuda", "virtual"), default="cuda")
    add("--memory", type=_whole, help=argparse.SUPPRESS)
    add("--window", type=_whole, help=argparse.SUPPRESS)
    add("--serve", metavar="URL")
    add("--name")
    return made


def _whole(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number from 1")
    return int(text)


def _rate(text: str) -> float:
    try:
        rate = float(text)
    except ValueError:
        rate = 0.0
    if not 0 < rate < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a learning rate between 0 and 1")
    return rate


def lora(text: str) -> Lora:
    """``r=16,alpha=32,dropout=0.05,modules=q_proj+v_proj``, each at most once."""
    said: dict[str, Any] = {}
    for part in filter(None, text.split(",")):
        name, equals, value = part.partition("=")
        if not equals or name not in ("r", "alpha", "dropout", "modules"):
            raise Wrong(f"--lora: '{part}' is none of r=N, alpha=N, dropout=SHARE, modules=NAME+NAME")
        if name in said:
            raise Wrong(f"--lora: {name} is there twice")
        said[name] = _modules(value) if name == "modules" else _number(name, value)
    return Lora(**said)


def _number(name: str, value: str) -> float:
    try:
        number = float(value) if name == "dropout" else int(value)
    except ValueError:
        number = -1
    if name == "dropout" and not 0 <= number < 1:
        raise Wrong(f"--lora: dropout={value} is not a share from 0 to below 1")
    if name != "dropout" and number < 1:
        raise Wrong(f"--lora: {name}={value} is not a whole number from 1")
    return number


def _modules(value: str) -> tuple[str, ...]:
    names = tuple(value.split("+"))
    for name in names:
        if name not in MODULES:
            near = difflib.get_close_matches(name, MODULES, n=2)
            meant = f"; near it: {', '.join(near)}" if near else f"; there are {', '.join(MODULES)}"
            raise Wrong(f"--lora: no module is named '{name}'{meant}")
    return names


def model(folder: Path) -> dict[str, Any]:
    """A model directory's configuration, once all of a model is there."""
    if not folder.is_dir():
        raise Wrong(f"--model: {folder} is not a directory; a model from a hub is downloaded first")
    config = folder / "config.json"
    try:
        found = json.loads(config.read_text())
    except OSError as error:
        raise Wrong(f"{config}: {error.strerror}; a model directory has its configuration there") from None
    except ValueError as error:
        raise Wrong(f"{config}: not JSON ({error})") from None
    family = found.get("model_type") if isinstance(found, dict) else None
    if family not in FAMILIES:
        raise Wrong(f"{config}: model_type is {family!r}; {', '.join(FAMILIES)} were tested")
    if not any(folder.glob("*.safetensors")):
        raise Wrong(f"--model: {folder} has no weights (*.safetensors)")
    if not any((folder / name).exists() for name in ("tokenizer.json", "tokenizer.model", "vocab.json")):
        raise Wrong(f"--model: {folder} has no tokenizer (tokenizer.json)")
    return found


def data(path: Path) -> list[Row]:
    """The samples of a file, one JSON object a line."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except OSError as error:
        raise Wrong(f"--data: {path}: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise Wrong(f"--data: {path}: not UTF-8 at byte {error.start}") from None
    rows = [_row(path, number, line) for number, line in enumerate(lines, 1) if line.strip()]
    if not rows:
        raise Wrong(f"--data: {path} has no line with a sample")
    return rows


def _row(path: Path, number: int, line: str) -> Row:
    where = f"{path}:{number}"
    try:
        found = json.loads(line)
    except ValueError as error:
        raise Wrong(f"{where}: not JSON ({error}); a line is one object, such as {{\"text\": \"...\"}}") from None
    if not isinstance(found, dict) or ("text" in found) == ("messages" in found):
        raise Wrong(f"{where}: has to have either 'text' or 'messages'")
    if "text" in found:
        if not isinstance(found["text"], str) or not found["text"].strip():
            raise Wrong(f"{where}: 'text' is not a text, or is empty")
        return Row(number, found["text"], None)
    messages = found["messages"]
    if not isinstance(messages, list) or not messages:
        raise Wrong(f"{where}: 'messages' is not a list, or is empty")
    for index, message in enumerate(messages):
        wanted = ("role", "content")
        if not isinstance(message, dict) or not all(isinstance(message.get(key), str) for key in wanted):
            raise Wrong(f"{where}: messages[{index}] has to have 'role' and 'content', both texts")
    return Row(number, None, messages)


def out(path: Path) -> None:
    """Where the adapter is to go: nothing may be there."""
    if path.exists() or path.is_symlink():
        raise Wrong(f"--out: {path} exists; choose another, or move it away")
    above = path.absolute().parent
    while not above.exists():
        above = above.parent
    if not above.is_dir():
        raise Wrong(f"--out: {above} is not a directory")


@dataclass(frozen=True, slots=True)
class Asked:
    """All of it, as far as it can be judged without the model."""

    words: argparse.Namespace
    lora: Lora
    config: dict[str, Any]
    rows: list[Row]


def asked(arguments: Sequence[str]) -> Asked:
    """Reads a command line and what it names."""
    words = parser().parse_args(arguments)
    chosen = lora(words.lora)
    if bool(words.serve) != bool(words.name):
        raise Wrong("--serve URL and --name NAME belong together: where the adapter goes, and what it is called there")
    out(words.out)
    return Asked(words, chosen, model(words.model), data(words.data))


#: What a training imports.
NEEDED = ("torch", "transformers", "peft")


def main() -> int:
    """Judges a command line alone; the exit code that the training would have."""
    try:
        asked(sys.argv[1:])
        if missing := [name for name in NEEDED if importlib.util.find_spec(name) is None]:
            raise Wrong(f"--python: {sys.executable} has no {', '.join(missing)}; pip install {' '.join(missing)}")
    except Wrong as wrong:
        print(f"finetune: {wrong}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
