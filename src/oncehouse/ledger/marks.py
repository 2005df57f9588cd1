"""Marks: how far the catalog had come, written among the ledger's files before rows leave for ClickHouse.

A catalog may lose what it confirmed (a standby is promoted without the last transactions, a file is restored from a
copy). A mark proves it from outside: one small file a lease term, named by token and holder so that a process that was
frozen lowers no other holder's, with the number of writes that its stage had confirmed when it last sent something.
Transactions are lost from the end only, so a catalog that has those writes has all that came before them: the attempt,
its batch, and their epochs. What was lost of which nothing was sent is no loss, and no mark counts it.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace

from oncehouse.errors import CorruptFileError, TransientError
from oncehouse.ledger.catalog import leases
from oncehouse.ledger.catalog.database import Catalog
from oncehouse.ledger.lease_terms import Term
from oncehouse.ledger.models import Attempt, Stage
from oncehouse.ledger.storage.file_store import FileStore

_NAME = re.compile(r"/marks/([a-z]+)-(\d{12})-[0-9a-f]{8}\.json$")


@dataclass(frozen=True, kw_only=True)
class Mark:
    """What its stage had seen confirmed before it last sent something; the token was given out in any case."""

    stage: Stage
    token: int
    holder: str
    writes: int
    """Of the stage, under all its terms, as far as what was sent needs them; 0 where nothing was."""
    epoch: int | None = None
    """The newest one that what was sent needs."""
    batch_id: str | None = None
    attempt: int | None = None
    at: float | None = None
    """On the catalog's clock."""

    @property
    def name(self) -> str:
        return _file_name(self.stage, self.token, self.holder)


@dataclass(frozen=True, kw_only=True)
class Sending:
    """An attempt whose first byte is about to leave, or an epoch that is about to be confirmed to its giver."""

    epoch: int
    attempt: Attempt | None = None


def mark_lease(catalog: Catalog, store: FileStore, stage: Stage, token: int) -> None:
    """Make the token known, and take over what earlier terms have marked.

    The token first: a process that does not see it afterwards has written before the others' marks are read here.
    """
    term = catalog.terms.find(stage, token)
    if term is None:
        return
    mark = Mark(stage=stage, token=token, holder=term.holder, writes=0)
    _put(catalog, store, mark)
    earlier = [found for found in read_marks(store, catalog.pipeline).found if _precedes(found, mark)]
    if sent := max(earlier, key=lambda found: (found.writes, found.token), default=None):
        mark = replace(sent, token=token, holder=term.holder)
        _put(catalog, store, mark)
    term.marked = mark.writes
    for found in earlier:
        store.delete(f"{catalog.pipeline}/marks/{found.name}")


def _precedes(found: Mark, mark: Mark) -> bool:
    return found.stage is mark.stage and found.token < mark.token


def write_mark(catalog: Catalog, store: FileStore, stage: Stage, token: int, sending: Sending) -> None:
    """Put down how many writes this process has seen confirmed; nothing where that stands there already.

    Raises TransientError where the file cannot be written or others cannot be listed: then nothing may be sent. Raises
    FencedError where a later term has left a mark, CatalogBehindError where the catalog does not know of that term.
    """
    term = catalog.terms.find(stage, token)
    if term is None:
        return
    # Over the requests too: of two marks under one name, the lower one must not come last.
    with term.marking:
        writes = term.writes
        if writes <= term.marked:
            return  # another thread's mark has covered this attempt
        sent = sending.attempt
        mark = Mark(
            stage=stage,
            token=token,
            holder=term.holder,
            writes=writes,
            epoch=sending.epoch,
            batch_id=sent.batch_id if sent else None,
            attempt=sent.attempt if sent else None,
            at=sent.started_at if sent else None,
        )
        _put(catalog, store, mark)
        # Only then: a later term that is not seen here will read this mark before it drops it.
        _require_newest_term(catalog, store, stage, term)
        term.marked = writes


def _put(catalog: Catalog, store: FileStore, mark: Mark) -> None:
    store.replace(f"{catalog.pipeline}/marks/{mark.name}", json.dumps(asdict(mark)).encode())


def _file_name(stage: Stage, token: int, holder: str) -> str:
    holder_hash = hashlib.sha256(holder.encode()).hexdigest()[:8]
    return f"{stage}-{token:012d}-{holder_hash}.json"


def _require_newest_term(catalog: Catalog, store: FileStore, stage: Stage, term: Term) -> None:
    """Of a term that came after this one, a catalog that lost it knows nothing; only its mark does."""
    own = _file_name(stage, term.token, term.holder)
    for path in store.walk(f"{catalog.pipeline}/marks"):
        found = _NAME.search(f"/{path}")
        if found is None or found[1] != stage:
            continue
        name = path.rpartition("/")[2]
        if int(found[2]) > term.token or (int(found[2]) == term.token and name != own):
            leases.refuse_overtaken(catalog, stage, term.token, known=int(found[2]), where=f"marks/{name}")


@dataclass(frozen=True, kw_only=True)
class Marks:
    found: tuple[Mark, ...]
    """Those of all stages and terms that have not been covered by later ones."""
    damaged: tuple[DamagedMark, ...]
    tokens: Mapping[str, int]
    """The highest one of each stage, whatever is in its file."""

    @property
    def sent_at(self) -> tuple[float, ...]:
        """When rows were last sent, by each mark; of a damaged one, when its file was written."""
        times = [*(mark.at for mark in self.found), *(mark.at for mark in self.damaged)]
        return tuple(at for at in times if at is not None)


@dataclass(frozen=True, kw_only=True)
class DamagedMark:
    path: str
    damage: str
    at: float | None
    """When its file was last written."""


def read_marks(store: FileStore, pipeline: str) -> Marks:
    """Damaged ones are listed, for callers that can go on without them."""
    found: list[Mark] = []
    damaged: list[DamagedMark] = []
    tokens: dict[str, int] = {}
    # By rising tokens: where one has just been dropped, the later one that has taken it over is read afterwards.
    for path in store.walk(f"{pipeline}/marks"):
        if (named := _NAME.search(f"/{path}")) is None:
            continue
        tokens[named[1]] = max(tokens.get(named[1], 0), int(named[2]))
        # A stage of a later version counts its writes where this one does not look.
        if named[1] not in set(Stage) or (content := _read(store, path)) is None:
            continue
        try:
            found.append(parse_mark(content))
        except (ValueError, KeyError, TypeError) as error:
            damage = f"{type(error).__name__}: {error}"
            damaged.append(DamagedMark(path=path, damage=damage, at=store.modified_at(path)))
    return Marks(found=tuple(found), damaged=tuple(damaged), tokens=tokens)


def list_marks(store: FileStore, pipeline: str) -> tuple[Mark, ...]:
    marks = read_marks(store, pipeline)
    for mark in marks.damaged:
        raise CorruptFileError(
            f"The ledger's file {mark.path} is damaged ({mark.damage}). It says how far the catalog had come when rows "
            "were last sent, so it is unknown whether the catalog has lost something since. `oncehouse repair --plan` "
            "compares it with the tables, `oncehouse repair --apply` brings it up to date where it has to be, and "
            "removes the file."
        )
    return marks.found


def _read(store: FileStore, path: str) -> bytes | None:
    try:
        return store.read_bytes(path)
    except TransientError as error:
        if isinstance(error.__cause__, FileNotFoundError):
            return None  # covered by a later term meanwhile
        raise


def parse_mark(content: bytes) -> Mark:
    """Keys that a later version added are passed over."""
    document = json.loads(content)
    known = {field.name: document[field.name] for field in fields(Mark) if field.name in document}
    numbers = {name: int(document[name]) for name in ("token", "writes")}
    at = document.get("at")
    return Mark(
        **known | numbers | {"stage": Stage(document["stage"]), "at": None if at is None else float(at)}
    )


def drop_damaged(store: FileStore, pipeline: str) -> None:
    """Only where the catalog has been compared with the tables, and gives out higher tokens than any of them."""
    for mark in read_marks(store, pipeline).damaged:
        store.delete(mark.path)


def find_ahead(marks: Iterable[Mark], writes: Mapping[Stage, int]) -> Mark | None:
    """The mark that the catalog has not come to, the farthest one; None where it has all of them. Pure."""
    ahead = [mark for mark in marks if mark.writes > writes.get(mark.stage, 0)]
    return max(ahead, key=lambda mark: (mark.writes, mark.token), default=None)


def describe_ahead(catalog: Catalog, store: FileStore) -> str | None:
    """What was sent after the catalog's moment; None where it has come to every mark."""
    # Listed before the catalog is asked: it may be ahead of them, never behind.
    return _describe_ahead(catalog, list_marks(store, catalog.pipeline))


def describe_ahead_of_sound(catalog: Catalog, store: FileStore) -> str | None:
    """The same where damaged marks are reported elsewhere."""
    return _describe_ahead(catalog, read_marks(store, catalog.pipeline).found)


def _describe_ahead(catalog: Catalog, marks: Sequence[Mark]) -> str | None:
    writes = leases.read_writes(catalog) if marks else {}
    mark = find_ahead(marks, writes)
    return None if mark is None else _describe(mark, writes.get(mark.stage, 0))


def _describe(mark: Mark, writes: int) -> str:
    done = f"write {mark.writes} of the stage {mark.stage} was confirmed before "
    if mark.batch_id is None:
        done += f"epoch {mark.epoch} was confirmed to the program that gave its rows"
    else:
        done += f"attempt {mark.attempt} of batch {mark.batch_id} (up to epoch {mark.epoch}) was sent"
    return f"it ends with write {writes}, but {done} (marks/{mark.name})"
