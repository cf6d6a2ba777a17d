"""OrbitKV: KV pages that outlive the engine. The client of a Manager on this host.

Importing this package starts no thread and opens no socket.
"""

from orbitkv._core import RecoveryContract
from orbitkv.client import (
    NO_STREAM,
    BlockHashes,
    Boundary,
    CacheManagerClient,
    Group,
    Health,
    Layer,
    OperationReport,
    QueryCandidates,
    QueryLoading,
    QueryReady,
    RecoveryLoading,
    RecoveryMissing,
    RecoveryReady,
    Registration,
    RestoreHandle,
    RestoreStatus,
    SaveHandle,
    SaveStatus,
)
from orbitkv.errors import (
    Action,
    BugError,
    ManagerUnavailableError,
    OrbitKVError,
    RecomputeError,
    RejectedError,
    RetryLaterError,
    SaveNotSubmittedError,
)

__all__ = [
    "NO_STREAM",
    "Action",
    "BlockHashes",
    "Boundary",
    "BugError",
    "CacheManagerClient",
    "Group",
    "Health",
    "Layer",
    "ManagerUnavailableError",
    "OperationReport",
    "OrbitKVError",
    "QueryCandidates",
    "QueryLoading",
    "QueryReady",
    "RecomputeError",
    "RecoveryContract",
    "RecoveryLoading",
    "RecoveryMissing",
    "RecoveryReady",
    "RejectedError",
    "Registration",
    "RestoreHandle",
    "RestoreStatus",
    "RetryLaterError",
    "SaveHandle",
    "SaveNotSubmittedError",
    "SaveStatus",
]
