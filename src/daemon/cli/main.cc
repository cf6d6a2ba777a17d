// Command line of `orbitkv`. CLI11 stays in this file.
#include <fcntl.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <cstdio>

#include "base/version.h"
#include "bench/bench.h"
#include "daemon/cli/commands.h"

namespace {
using namespace orbitkv;

constexpr int kUsageError = 2;  // as of the checks behind the parser

void add_serve(CLI::App& app, daemon::cli::ServeFlags& flags) {
  CLI::App* serve =
      app.add_subcommand("serve", "Run the Manager of this host: engines attach to its socket.");
  serve->footer(
      "Example: orbitkv serve --pool-size 30GiB\n"
      "An engine of the same user finds the socket by the same rule. SIGTERM or Ctrl-C drains and ends;\n"
      "a second one says what is still pending and ends at once.");
  serve->add_option("--bootstrap-socket", flags.socket,
                    "Unix socket, mode 0600 in a directory of mode 0700 (made if missing)\n"
                    "[${XDG_RUNTIME_DIR:-/tmp/orbitkv-$UID}/orbitkv/manager.sock]");
  serve->add_option("--pool-size", flags.pool_size,
                    "memory for KV pages, e.g. 512MiB or 30GiB; GB means GiB\n[the smaller of 30GiB and a "
                    "quarter of usable memory]");
  serve
      ->add_option("--hugepages", flags.huge_pages,
                   "auto: reserved huge pages, else collapse, else 4 KiB; on: all or refuse to start; off")
      ->capture_default_str();
  serve->add_flag("--prefault,!--no-prefault", flags.prefault,
                  "touch the pool's memory in the background before it is used [on]");
  serve->add_option("--lease-ttl", flags.lease_ttl_s, "seconds that a hit stays pinned for its restore")
      ->capture_default_str();
  serve
      ->add_option("--publish-wait", flags.publish_wait_ms,
                   "milliseconds that a publish waits for another publisher of the same block")
      ->capture_default_str();
  serve
      ->add_option("--incomplete-ttl", flags.incomplete_ttl_s,
                   "seconds after which a block that some ranks never published is given up")
      ->capture_default_str();
  serve->add_option("--max-blocks", flags.max_blocks, "entries of the block table [pool size / 16 KiB]");
  serve->add_option("--spin", flags.spin_us, "microseconds of polling after the last command before sleeping")
      ->capture_default_str();
  serve->add_option("--drain-timeout", flags.drain_s, "seconds that a stop waits for claimed copies")
      ->capture_default_str();
  serve->add_option("--log-level", flags.log_level, "debug, info, warning or error")->capture_default_str();
}

void add_status(CLI::App& app, daemon::cli::StatusFlags& flags) {
  CLI::App* status =
      app.add_subcommand("status", "Show sessions, pool, hits and quarantine of a running Manager.");
  status->add_option("--bootstrap-socket", flags.socket, "socket of the Manager [the default path of serve]");
  status->add_flag("--json", flags.json, "one JSON object");
  status->add_option("--timeout-ms", flags.timeout_ms, "how long to wait for an answer")
      ->capture_default_str();
}

void add_bench(CLI::App& app, bench::Flags& flags) {
  CLI::App* bench = app.add_subcommand("bench", "Measure; starts its own Manager in a second process.");
  bench->footer(
      "Example: orbitkv bench query --json\nOne line a case, with the ratio to a ceiling measured in the "
      "same run.\n" +
      std::string("Benches: ") + bench::names());
  bench->add_option("name", flags.name, "one of the benches below, or all")->required();
  bench->add_option("file", flags.file, "replay: a trace of transfers (ORBITKV_TRACE_TRANSFERS)");
  bench->add_option("--case", flags.only,
                    "only the case of this name, as the output writes it; a trailing * stands for the rest");
  bench
      ->add_option("--device", flags.device,
                   "copy, restore, publish, replay: where the pages lie, cpu:0 or cuda:<number>\n"
                   "(replay: cuda:0 if none is named); exit status 77 without that GPU")
      ->capture_default_str();
  bench->add_option("--window", flags.window,
                    "copy on a GPU: tuned, default, or ctas,stage KiB,loads,stores [tuned]");
  bench->add_option("--runs", flags.runs, "runs of each case; medians are shown")->capture_default_str();
  bench->add_flag("--json", flags.json, "one JSON object a line");
}

// A descriptor 2 that was closed would become a socket or a slab, and the log would go there.
bool open_standard_descriptors() {
  int fd = 0;
  do {
    fd = ::open("/dev/null", O_RDWR);
  } while (fd >= 0 && fd <= 2);
  if (fd > 2) ::close(fd);
  return fd > 2;
}
}  // namespace

int main(int argc, char** argv) {
  if (!open_standard_descriptors()) return 1;
  CLI::App app("OrbitKV keeps the KV pages of LLM engines outside the GPU and restores them byte-exact.",
               "orbitkv");
  app.set_version_flag("--version", std::string("orbitkv ") + kVersion);
  app.require_subcommand(1);
  daemon::cli::ServeFlags serve;
  daemon::cli::StatusFlags status;
  bench::Flags bench;
  add_serve(app, serve);
  add_status(app, status);
  add_bench(app, bench);
  const auto is_named = [&](const CLI::App* command) { return command->get_name() == argv[1]; };
  if (argc > 1 && argv[1][0] != '-' && app.get_subcommands(is_named).empty()) {
    std::fprintf(stderr, "orbitkv: no command is called \"%s\"; there are: serve, status, bench\n", argv[1]);
    return kUsageError;
  }
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : kUsageError;
  }
  if (app.got_subcommand("serve")) return daemon::cli::serve(serve);
  if (app.got_subcommand("status")) return daemon::cli::status(status);
  return bench::run(bench, argv[0]);
}
