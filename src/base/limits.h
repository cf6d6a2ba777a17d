// Every bound of the system, by name. Full is an answer (`busy` or a clear
// error), never growth; tests/native/limits_test reaches those that a client can reach.
#pragma once

#include <cstdint>

#include "base/ids.h"
#include "base/time.h"

namespace orbitkv::limits {

// Sessions and operations.
inline constexpr std::uint32_t kSessions = 64;  // live, or closed with claimed work; quarantine is the pool's
inline constexpr std::uint32_t kProcesses = 1024;      // that have attached and are alive
inline constexpr std::uint32_t kRecords = 1024;        // grant records = operations, a session
inline constexpr std::uint32_t kRingEntries = 64;      // commands in flight, a session
inline constexpr std::uint32_t kDescriptorSlots = 16;  // frames in flight, a session
inline constexpr std::uint32_t kDescriptorSlotBytes = 64 * 1024;
inline constexpr std::uint32_t kPlanBankBytes = 1024 * 1024;
inline constexpr std::uint32_t kErrorTextBytes = 88;  // each side, in a grant record
inline constexpr std::uint32_t kHandlesKept =
    64 * 1024;  // ended operations that a client's user has not dropped
inline constexpr std::uint32_t kRestoresPerDevice = 128;  // admitted and not yet reaped
inline constexpr std::uint32_t kCopyBatches = 16;         // of one copier that run at once
inline constexpr std::uint32_t kCopyLaunches = 8;         // of one GPU copier and direction on its queues
inline constexpr ByteCount kBounceBytes =
    16 * kMiB;  // pinned, a GPU copier and direction, or one larger image
inline constexpr std::uint32_t kTraceUnits = 64 * 1024;  // fragments and slots that a trace file describes

// Metadata: hashes and page lists that the Manager holds for a session's operations.
inline constexpr ByteCount kMetadataPerOperation = 32 * kMiB;
inline constexpr ByteCount kMetadataPerSession = 64 * kMiB;

// One turn of the Manager: what a session may ask of it before the others have theirs. The
// request that reaches a bound is answered still; what is left waits for the next turn.
inline constexpr std::uint32_t kCommandsPerTurn = 16;
inline constexpr ByteCount kRequestBytesPerTurn = 32 * kKiB;  // of request frames: about 1,000 hashes
inline constexpr std::uint32_t kFramesPerTurn = 4;            // from its socket

// Commands of the operator.
inline constexpr std::uint32_t kControlsWaiting = 32;   // of a kind, for the device or their turns
inline constexpr std::uint32_t kListedNamespaces = 32;  // in one answer
inline constexpr std::uint32_t kDropLooks = 64 * 1024;  // records that a turn of a drop looks at
inline constexpr std::uint32_t kDropsPerTurn = 4096;    // of them dropped

// Frames and names.
inline constexpr std::uint32_t kSocketFrameBytes = 128 * 1024;
inline constexpr std::uint32_t kFdsPerMessage = 64;
inline constexpr std::uint32_t kRequestIdBytes = 256;
inline constexpr std::uint32_t kNamespaceBytes = 512;
inline constexpr std::uint32_t kDeviceNameBytes = 64;
inline constexpr std::uint32_t kPeerNameBytes = 128;  // program and version, in Hello and its reply
inline constexpr std::uint32_t kSocketErrorBytes = 1024;
inline constexpr std::uint32_t kControlBytes = 16 * 1024;  // of one command of the operator

// Shapes.
inline constexpr std::uint32_t kBlockHashBytes = 32;
inline constexpr std::uint32_t kGroups = 16;              // a registration
inline constexpr std::uint32_t kLayers = 1024;            // layer bindings, a registration
inline constexpr std::uint32_t kShards = 64;              // ranks of an instance
inline constexpr std::uint32_t kBlocksPerGrant = 8192;    // entries of one plan
inline constexpr ByteCount kSlotImageBytes = 256 * kMiB;  // one block, group and shard
inline constexpr std::uint32_t kFragmentsPerSlot = 4096;
inline constexpr std::uint32_t kFragmentsPerRegistration = 8192;  // over its groups; one socket frame

// Queries and leases.
inline constexpr std::uint32_t kQueriesPerSession = 1024;  // live request ids with a lease
inline constexpr std::uint32_t kTailPages = 1u << 20;  // that a boundary is looked for in; hashes of a query
inline constexpr std::uint32_t kLeases = 16 * 1024;
inline constexpr std::uint32_t kTicketsPerSession = 128;  // queries without a result, or with one not fetched
inline constexpr std::uint32_t kTickets = 1024;           // of the host
inline constexpr std::uint32_t kReservedTickets = kTickets / 2 / kSessions;  // of them for each session
inline constexpr std::uint32_t kPreparesPerSession = 4;                      // that nobody has claimed
inline constexpr std::uint32_t kWarmsPerSession = 16;
inline constexpr std::uint32_t kWarms = 128;  // of the host
inline constexpr Duration kWarmLife = seconds(5);
inline constexpr std::uint32_t kWarmPieceBlocks = 256;  // of a hint, on their way at once
inline constexpr std::uint32_t kListSlice = 2048;       // hashes of a kept list that are looked up together
inline constexpr std::uint32_t kPasses = 16;            // of one in the line, by those who came later
inline constexpr std::uint32_t kLookBehind = 16;        // of one instance, behind one that does not fit
// Pins that one call gives back at once, as leases and restores end or are cut: more go back over turns.
inline constexpr std::uint32_t kUnpinsPerTurn = 4 * 1024;
inline constexpr std::uint32_t kEndsPerTurn = 512;          // leases and queries whose time is over
inline constexpr std::uint32_t kPiecesPerTurn = 64;         // of kListSlice hashes, of lists that have ended
inline constexpr std::uint32_t kLookUpsPerTurn = 8 * 1024;  // hashes of one list: more are over turns
inline constexpr std::uint64_t kLinePagesPerTurn = 64 * 1024;  // that are looked up for the line
inline constexpr std::uint32_t kInterests = 1024;              // of the host
inline constexpr std::uint32_t kReservedInterests = kInterests / 2 / kSessions;  // of them for each session
inline constexpr std::uint32_t kInterestsPerInstance = 128;                      // of one session
inline constexpr std::uint32_t kInterestLooks = 16;        // that hold, looked at to find room for another
inline constexpr std::uint32_t kInterestOperations = 128;  // operation ids of one interest
inline constexpr std::uint32_t kInterestParts = 1024;      // of one operation's list
inline constexpr std::uint32_t kInterestWindow =
    1024;  // ids of a coordinator that are told apart from used ones
inline constexpr std::uint32_t kInterestGroup = 64;  // participants of one coordinator
inline constexpr std::uint32_t kInterestCoordinators =
    kInterestGroup;  // of a session whose ids are remembered: each participant there is one
inline constexpr std::uint32_t kInterestFrameBytes = kDescriptorSlotBytes;
inline constexpr ByteCount kCarriedBytes = 16 * kMiB;  // that wait in a group's mailbox, each way
inline constexpr std::uint32_t kInstances = 64;
inline constexpr std::uint32_t kBlocks = 1u << 30;  // entries of the block table (--max-blocks)
inline constexpr std::uint32_t kNamespaces = 1024;
inline constexpr std::uint32_t kRegistrationsPerSession = 16;
inline constexpr std::uint32_t kInflightImages = 64 * 1024;  // unsealed block images, Manager
inline constexpr std::uint32_t kLoads = 4096;  // block images on their way from the SSD, Manager

// Memory.
inline constexpr std::uint32_t kSlabs = 4096;
inline constexpr std::uint32_t kEvictLooks =
    4096;  // pinned images that a call passes over to find who may go
inline constexpr std::uint32_t kEvictedAtOnce = 1024;  // images, if that is enough for what is asked for
inline constexpr std::uint32_t kRetireLooks = 4096;  // records and slots that a turn of a retirement looks at
inline constexpr Duration kStartSilence =
    seconds(30);  // of a start without a sign of progress (daemon/fd_store.h)
inline constexpr ByteCount kSlabBytes = kGiB;
inline constexpr std::uint32_t kKeptDescriptors = kSlabs + 1024;  // that the keeper holds
inline constexpr std::uint32_t kKeptNameBytes = 48;               // of one of them
inline constexpr std::uint32_t kKeptPending =
    64 * 1024;                                        // extents that earlier lives of the Manager had lent
inline constexpr std::uint32_t kKeptRetired = 1024;   // slabs that are gone and may be mapped by others yet
inline constexpr std::uint32_t kKeptProcesses = 256;  // without a session, of which the next life is told
inline constexpr ByteCount kHugePageBytes = 2 * kMiB;
inline constexpr std::uint32_t kMemoryNodes = 64;  // NUMA nodes that are told apart
// Where a piece of a GPU's registration ends, and the address of a slab's mapping is a multiple of:
// a millisecond or two each, and a small slab is one piece.
inline constexpr ByteCount kRegisterPiece = 32 * kMiB;
inline constexpr std::uint32_t kNodeNumbers = 1024;  // above every number that the kernel gives a node
inline constexpr std::uint32_t kProbeWindow = 32;    // residency index

// SSD store: format (docs/ssd-format.md).
inline constexpr std::uint32_t kSpaceDrops = 64;        // namespaces dropped, records not yet reclaimed
inline constexpr std::uint32_t kStorePaths = 64;        // of one store
inline constexpr std::uint32_t kPathNumbers = 1 << 16;  // ever given in one store
inline constexpr std::uint32_t kStoredSpaces = 4096;    // groups of namespaces that a store knows
inline constexpr std::uint32_t kSegmentSpaces = 256;    // of them in one segment
inline constexpr std::uint32_t kDescriptorPages = 64;   // of one batch
inline constexpr ByteCount kSegmentBytesLeast = 256 * kKiB;
inline constexpr ByteCount kSegmentBytesMost = kGiB;
inline constexpr std::uint32_t kPathSegments = 1u << 20;  // 64 TiB of the usual 64 MiB

// SSD store: work under way.
inline constexpr std::uint32_t kPathSegmentsLeast = 8;
inline constexpr std::uint32_t kReservedSegments = 2;     // of a path, for tombstones and copies forward
inline constexpr std::uint32_t kStoreReads = 4096;        // records being read
inline constexpr std::uint32_t kStoreWrites = 64 * 1024;  // accepted, not yet written
inline constexpr std::uint32_t kStoreFlushes = 64;        // under way
inline constexpr std::uint32_t kTombstones = 64 * 1024;   // ends of records that must still be kept
inline constexpr std::uint32_t kRecoveredAStep = 64;  // records and segments that a step of the opening takes
inline constexpr std::uint32_t kUnusedLooks = 64 * 1024;  // records that a turn of a drop by age looks at
inline constexpr std::uint32_t kUnusedEnds = 4096;        // of them that it ends one by one
inline constexpr std::uint32_t kSuspects = 64;            // records that wait to be verified again

}  // namespace orbitkv::limits
