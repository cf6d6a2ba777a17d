// Kills engines and Managers in all rows (rows.h): `kill_matrix engine|manager COUNT WITHIN_S SEED`; with
// `lies` victims save wrong bytes. Lines "progress PARTY KILLS OF", and last one JSON object;
// scripts/kill-matrix shows both.
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <string>

#include "base/log.h"
#include "tests/native/kill_matrix/rows.h"
#include "tests/native/kill_matrix/tally.h"

int main(int argc, char** argv) {
  using namespace orbitkv;
  using namespace orbitkv::test::kills;
  const std::string party = argc > 1 ? argv[1] : "";
  if (argc == 2 && party == "rows") {
    for (const EngineRow& row : kEngineRows) std::printf("engine\t%s\n", std::string(row.name).c_str());
    for (const ManagerRow& row : kManagerRows) std::printf("manager\t%s\n", std::string(row.name).c_str());
    return 0;
  }
  const bool lies = argc == 6 && std::string(argv[5]) == "lies";
  if ((argc != 5 && !lies) || (party != "engine" && party != "manager")) {
    std::fprintf(stderr, "kill_matrix engine|manager COUNT WITHIN_S SEED [lies], or kill_matrix rows\n");
    return 2;
  }
  ::signal(SIGPIPE, SIG_IGN);  // a victim may be gone before it is told
  set_log_level(LogLevel::kOff);
  const Order order{static_cast<std::uint32_t>(std::strtoul(argv[2], nullptr, 10)),
                    seconds(std::strtol(argv[3], nullptr, 10)), std::strtoull(argv[4], nullptr, 10), lies};
  Tally tally(party, order.count);
  if (party == "engine")
    kill_engines(order, tally);
  else
    kill_managers(order, tally);
  std::printf("%s\n", tally.json().c_str());
  return tally.failed() ? 1 : 0;
}
