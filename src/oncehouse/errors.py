"""Every error of oncehouse, in one tree.

    OncehouseError
    ├── ConfigurationError      the user's file or set-up is wrong; nothing was changed        exit 2
    │   ├── UpgradeNeededError  the catalog is of an older oncehouse and was not upgraded yet  exit 2
    │   └── MissingExtraError   a package is not installed that an extra of oncehouse brings   exit 2
    ├── TransientError          the same call may succeed later; callers back off and retry    exit 75
    │   └── FullDiskError       no space is left where something has to be written             exit 7
    └── PermanentError          retrying cannot help; an operator has to act                     exit 1
        ├── FencedError         another process holds the lease now; this one must stop        exit 4
        │   └── CatalogBehindError  the catalog has lost transactions that it had confirmed    exit 8
        ├── LeaseHeldError      the lease is held by a live process; this one waits or leaves  exit 4
        ├── OffsetGapError      a range does not start where the ledger ends
        ├── BatchSettledError   a batch of a query is in the ledger already
        ├── CorruptFileError    bytes of the ledger do not match their checksum
        ├── DataLossError       Kafka no longer has what the ledger has not read               exit 5
        └── PoisonError         too large a share of records cannot be decoded                 exit 6

A message says what happened, where, and what to do. Errors survive pickling, because Spark's workers ship
them: every argument is passed on to `Exception.__init__`, and no subclass adds a constructor of its own.
"""


class OncehouseError(Exception):
    """Root of all errors that oncehouse raises on purpose."""

    exit_code = 1


class ConfigurationError(OncehouseError):
    exit_code = 2


class UpgradeNeededError(ConfigurationError):
    pass


class MissingExtraError(ConfigurationError, ModuleNotFoundError):
    """A ModuleNotFoundError too, so that `except ImportError` around an import works as for any other package."""


class TransientError(OncehouseError):
    exit_code = 75


class FullDiskError(TransientError):
    exit_code = 7


class PermanentError(OncehouseError):
    exit_code = 1


class FencedError(PermanentError):
    exit_code = 4


class CatalogBehindError(FencedError):
    exit_code = 8


class LeaseHeldError(PermanentError):
    exit_code = 4


class OffsetGapError(PermanentError):
    pass


class BatchSettledError(PermanentError):
    pass


class CorruptFileError(PermanentError):
    pass


class DataLossError(PermanentError):
    exit_code = 5


class PoisonError(PermanentError):
    exit_code = 6
