// All implementations of the I/O seam run one suite.
#include "ssd/io_suite.h"

namespace orbitkv::ssd::suite {
namespace {

const Implementation kImplementations[] = {
    {"Uring", [] { return std::make_unique<RealBed>(IoKind::kUring); }},
    {"Threads", [] { return std::make_unique<RealBed>(IoKind::kThreads); }},
    {"Memory", [] { return std::make_unique<MemoryBed>(LatencyRange{}); }},
    {"MemoryShuffled", [] { return std::make_unique<MemoryBed>(LatencyRange{{}, milliseconds(10)}); }},
};

INSTANTIATE_TEST_SUITE_P(All, IoSuite, testing::ValuesIn(kImplementations), test_name);

}  // namespace
}  // namespace orbitkv::ssd::suite
