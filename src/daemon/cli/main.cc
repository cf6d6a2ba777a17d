// Command line of `orbitkv`. CLI11 stays in this file.
#include <fcntl.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <cerrno>
#include <cstdio>
#include <cstring>

#include "base/version.h"
#include "bench/bench.h"
#include "daemon/cli/commands.h"
#include "daemon/exits.h"

namespace {
using namespace orbitkv;

using daemon::kExitUsage;  // as of the checks behind the parser

void add_serve_ssd(CLI::App& serve, daemon::cli::ServeFlags& flags) {
  serve
      .add_option(
          "--ssd-path", flags.ssd_paths,
          "file (made if missing) or block device for blocks that leave memory; repeat it for several\n"
          "devices. They are found again after a restart")
      ->group("SSD");
  serve
      .add_option("--ssd-size", flags.ssd_size,
                  "of all paths together, e.g. 500GiB [half of what is free on each file system; a block\n"
                  "device: all; a store that is there: as it is]")
      ->group("SSD");
  serve
      .add_option("--ssd-write-policy", flags.ssd_write_policy,
                  "what is written: auto (what is expected back), reuse (what came back once), all")
      ->capture_default_str()
      ->group("SSD");
  serve
      .add_option("--ssd-daily-write-budget", flags.ssd_daily_write_budget,
                  "bytes a day that may be written, e.g. 2TiB: the drive's endurance [no limit]")
      ->group("SSD");
  serve
      .add_option("--ssd-scrub-rate", flags.ssd_scrub_rate,
                  "bytes a second of stored blocks that are read again and verified, e.g. 50MiB [off]")
      ->group("SSD");
  serve
      .add_option(
          "--load-wait", flags.load_wait_ms,
          "milliseconds, at most 60000, that a query may wait for its blocks to come from SSD; then it\n"
          "gets those that are there")
      ->capture_default_str()
      ->group("SSD");
  serve.add_option("--ssd-io", flags.ssd_io, "auto, uring or threads: how the device is driven")
      ->capture_default_str()
      ->group("SSD");
  serve
      .add_option("--ssd-segment-size", flags.ssd_segment_size,
                  "of a new store: what is written, indexed and reclaimed as one")
      ->capture_default_str()
      ->group("SSD");
}

void add_serve_slabs(CLI::App& serve, daemon::cli::ServeFlags& flags) {
  serve
      .add_option("--retire-after", flags.retire_after_ms,
                  "milliseconds from the death of an engine in the middle of a save until the slab that\n"
                  "it may still write to is replaced")
      ->capture_default_str();
  serve.add_option("--pool-min", flags.pool_min,
                   "shrink the pool, slab by slab, down to this when a cgroup goes over its memory.high, "
                   "e.g. 8GiB\n[never]");
  serve.add_option("--retire-headroom", flags.retire_headroom,
                   "memory beyond --pool-size for slabs that are being replaced, e.g. 1GiB\n[the larger of "
                   "one slab and 1/16 of the pool]");
}

void add_serve_queries(CLI::App& serve, daemon::cli::ServeFlags& flags) {
  serve.add_option("--query-budget", flags.query_budget,
                   "what leases may hold, each counted in full even where they share blocks: a size, or a\n"
                   "share of the pool. What does not fit waits for its turn [400%]");
  serve.add_option("--query-instance-budget", flags.query_instance_budget,
                   "likewise of one engine [half of --query-budget]");
  serve
      .add_option(
          "--full-prefix-wait", flags.full_prefix_wait_s,
          "seconds, 1 to 30, that a query which asks for it waits for blocks that another engine saves")
      ->capture_default_str();
}

void add_serve_keep(CLI::App& serve, daemon::cli::ServeFlags& flags) {
  serve
      .add_flag(
          "--keep", flags.keep,
          "blocks outlive the Manager's process: when it dies or is upgraded (orbitkv upgrade, or SIGHUP)\n"
          "the next one goes on with them, and engines keep their mappings. While it runs, nobody else can\n"
          "serve at its socket")
      ->group("KEEP");
  serve
      .add_option("--keep-with", flags.keep_with,
                  "who holds the memory meanwhile: keeper (a small parent process), systemd (the unit's\n"
                  "descriptor store), auto")
      ->capture_default_str()
      ->group("KEEP");
  serve
      .add_option(
          "--start-silence", flags.start_silence_s,
          "seconds, 1 to 86400, without a sign of progress after which a Manager that starts is ended,\n"
          "and tried again, or, at an upgrade, given up for the one before; a start that goes on may\n"
          "take any time; 0: off")
      ->capture_default_str()
      ->group("KEEP");
  serve.add_option("--keeper-fd", flags.keeper_fd)->group("");
  serve.add_option("--keeper-says", flags.keeper_says)->group("");
  serve.add_flag("--can-keep", flags.can_keep)->group("");
}

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
  serve
      ->add_option("--numa", flags.numa,
                   "auto: spread the pool over the NUMA nodes and serve each engine from its device's; off")
      ->capture_default_str();
  serve
      ->add_option("--lease-ttl", flags.lease_ttl_s,
                   "seconds, 1 to 86400, that a hit stays pinned for its restore")
      ->capture_default_str();
  serve
      ->add_option(
          "--publish-wait", flags.publish_wait_ms,
          "milliseconds that a publish waits for another publisher of the same block, and at the start\n"
          "for memory; no more than --incomplete-ttl")
      ->capture_default_str();
  serve
      ->add_option("--incomplete-ttl", flags.incomplete_ttl_s,
                   "seconds, at least 1, after which a block that some ranks never published is given up")
      ->capture_default_str();
  serve
      ->add_option("--cache-protected-percent", flags.protected_percent,
                   "part of the pool, 0 to 100, for blocks that came back to a query: they are evicted last")
      ->capture_default_str();
  serve->add_option("--max-blocks", flags.max_blocks,
                    "entries of the block table, at most 2^30 [pool size / 16 KiB]");
  serve
      ->add_option("--spin", flags.spin_us,
                   "microseconds, at most 1000000, of polling after the last command before sleeping")
      ->capture_default_str();
  serve
      ->add_option("--drain-timeout", flags.drain_s,
                   "seconds that a stop waits for claimed copies and the SSD")
      ->capture_default_str();
  serve
      ->add_option(
          "--stall-after", flags.stall_after_s,
          "seconds, 3 to 86400, without a sign of life after which an engine gets no more work; 0: off")
      ->capture_default_str();
  serve
      ->add_option(
          "--stalled-engine", flags.stalled_engine,
          "report; kill: end its process (SIGKILL) if it still holds claimed copies after twice that time")
      ->capture_default_str();
  serve->add_option("--log-level", flags.log_level, "debug, info, warning or error")->capture_default_str();
  add_serve_slabs(*serve, flags);
  add_serve_queries(*serve, flags);
  add_serve_keep(*serve, flags);
  add_serve_ssd(*serve, flags);
}

void add_upgrade(CLI::App& app, daemon::cli::UpgradeFlags& flags) {
  CLI::App* upgrade = app.add_subcommand(
      "upgrade", "Put a new Manager in the place of a running one (serve --keep); its blocks stay.");
  upgrade->footer(
      "Example: orbitkv upgrade\n"
      "Engines go on: they attach to the new one by themselves and keep what they have mapped. A binary "
      "that\n"
      "could not go on with the blocks is refused, and one that does not come to serve is given up for the\n"
      "one before. It returns when the new one serves; exit status 1: that did not come to be, and why.\n"
      "Under systemd: systemctl reload.");
  upgrade->add_option("--bootstrap-socket", flags.socket,
                      "socket of the Manager [the default path of serve]");
  upgrade->add_option("--binary", flags.binary,
                      "absolute path of the new orbitkv [what stands at the path of the running one]");
  upgrade->add_flag("--cold", flags.cold,
                    "also to one that cannot go on with the blocks: they are let go of");
  upgrade->add_flag("--log", flags.log)->group("");
  upgrade->add_flag("--json", flags.json, "one JSON object");
}

void add_evict(CLI::App& app, daemon::cli::EvictFlags& flags) {
  CLI::App* evict = app.add_subcommand("evict", "Free memory of a running Manager; copies on SSD stay.");
  evict->footer(
      "Example: orbitkv evict --bytes 8GiB\n"
      "Least recent first. Blocks that are leased or being copied stay and are counted; those that are "
      "worth\n"
      "keeping and not on SSD yet are written first: --wait waits for them, at most 50 seconds.");
  evict->add_option("--bootstrap-socket", flags.socket, "socket of the Manager [the default path of serve]");
  evict->add_option("--bytes", flags.bytes, "how much, e.g. 8GiB [all]");
  evict->add_flag("--wait", flags.wait, "return when what is written to SSD first has left memory too");
  evict->add_flag("--json", flags.json, "one JSON object");
}

void add_drop(CLI::App& app, daemon::cli::DropFlags& flags) {
  CLI::App* drop = app.add_subcommand("drop", "Forget blocks for good, in memory and on SSD.");
  drop->footer(
      "Examples: orbitkv drop --dry-run                    shows the namespaces that there are\n"
      "          orbitkv drop 3f9a2c71d04be812\n"
      "          orbitkv drop --scope tenant-a\n"
      "          orbitkv drop --older-than 12h --dry-run\n"
      "Pinned blocks go out of sight and are freed with their last pin; with --older-than they are in use\n"
      "and stay. A block found on SSD at the start counts as used then. Exit status 1: some are left.");
  drop->add_option("digest", flags.digests, "of a namespace, or its beginning: at least 8 digits");
  drop->add_option("--scope", flags.scope, "all namespaces of this cache scope (ORBITKV_CACHE_SCOPE)");
  drop->add_option(
      "--older-than", flags.older_than,
      "only blocks that were not used for so long: 30m, 2h, 7d; counted in minutes, in memory up\n"
      "to 45d");
  drop->add_flag("--all-unasked", flags.all_unasked,
                 "what no engine has asked for since the Manager started");
  drop->add_flag("--force", flags.force,
                 "--all-unasked also while no engine has registered: everything; so it is without an SSD");
  drop->add_flag("--memory-only", flags.memory_only, "what is on SSD stays");
  drop->add_flag("--ssd-only", flags.ssd_only, "what is in memory stays, and may be written to SSD again");
  drop->add_flag("--dry-run", flags.dry_run, "say what would go");
  drop->add_option("--bootstrap-socket", flags.socket, "socket of the Manager [the default path of serve]");
  drop->add_flag("--json", flags.json, "one JSON object");
}

CLI::App* add_ssd(CLI::App& app, daemon::cli::SsdFlags& flags) {
  CLI::App* ssd = app.add_subcommand("ssd", "List or drop what a running Manager has stored on SSD.");
  ssd->require_subcommand(1);
  CLI::App* list = ssd->add_subcommand("list",
                                       "The namespaces on SSD: engines that differ in anything that\n"
                                       "changes the meaning of bytes have one each.");
  CLI::App* drop = ssd->add_subcommand("drop", "Forget a namespace, in memory and on SSD, for good.");
  drop->footer("Example: orbitkv ssd drop 3f9a2c71d04be812\nSee orbitkv drop for scopes and ages.");
  drop->add_option("digest", flags.drop, "of the namespace, or its beginning: at least 8 digits");
  drop->add_flag("--unasked", flags.unasked, "all that no engine has asked for since the Manager started");
  drop->add_flag("--force", flags.force, "--unasked also while no engine has registered: everything");
  for (CLI::App* command : {list, drop}) {
    command->add_option("--bootstrap-socket", flags.socket,
                        "socket of the Manager [the default path of serve]");
    command->add_flag("--json", flags.json, "one JSON object");
  }
  return ssd;
}

struct PoolCommands {
  CLI::App *pool, *list, *add, *drain;
};
PoolCommands add_pool(CLI::App& app, daemon::cli::PoolFlags& flags) {
  PoolCommands made{};
  made.pool = app.add_subcommand("pool", "Make the pool of a running Manager larger or smaller.");
  made.pool->require_subcommand(1);
  made.list =
      made.pool->add_subcommand("list", "The slabs of the pool, and what those that retire wait for.");
  made.add = made.pool->add_subcommand("add", "More memory, in whole slabs.");
  made.add->footer("Example: orbitkv pool add 4GiB");
  made.add->add_option("size", flags.amount, "how much, e.g. 4GiB; up to a slab more")->required();
  made.drain =
      made.pool->add_subcommand("drain", "Less memory, in whole slabs: the emptiest, or one by its number.");
  made.drain->footer(
      "Example: orbitkv pool drain 4GiB\n"
      "Blocks on it that are worth keeping are written to SSD first, the others are dropped. The answer\n"
      "comes at once; orbitkv pool list shows how far it is.");
  made.drain->add_option("what", flags.amount, "how much, e.g. 4GiB, or the number of a slab")->required();
  for (CLI::App* command : {made.list, made.add, made.drain}) {
    command->add_option("--bootstrap-socket", flags.socket,
                        "socket of the Manager [the default path of serve]");
    command->add_flag("--json", flags.json, "one JSON object");
  }
  return made;
}

int run_pool(const PoolCommands& commands, const daemon::cli::PoolFlags& flags) {
  if (commands.pool->got_subcommand(commands.list)) return daemon::cli::pool_list(flags);
  if (commands.pool->got_subcommand(commands.add)) return daemon::cli::pool_add(flags);
  return daemon::cli::pool_drain(flags);
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
      std::string("Benches: ") + bench::names() + "\nCases of ssd: " + bench::case_names());
  bench->add_option("name", flags.name, "one of the benches below, or all")->required();
  bench->add_option("file", flags.file,
                    "replay: a trace of transfers (ORBITKV_TRACE_TRANSFERS)\n"
                    "endurance, eviction: a trace of requests, JSON lines with timestamp and hash_ids");
  bench->add_option("--case", flags.only,
                    "only the case of this name, as the output writes it; a trailing * stands for the rest");
  bench
      ->add_option("--device", flags.device,
                   "copy, restore, publish, replay: where the pages lie, cpu:0 or cuda:<number>\n"
                   "(replay: cuda:0 if none is named); exit status 77 without that GPU")
      ->capture_default_str();
  bench->add_option("--window", flags.window,
                    "copy on a GPU: tuned, default, or ctas,stage KiB,loads,stores [tuned]");
  bench->add_option("--runs", flags.runs, "runs of each case; medians are shown [5; ssd 15]");
  bench->add_option("--path", flags.path, "ssd: the directory of its file [TMPDIR, else the current one]");
  bench->add_option("--file-size", flags.file_bytes, "ssd: of its file [8GiB, or a third of the free space]")
      ->transform(CLI::AsSizeValue(false));
  bench->add_option("--block-bytes", flags.block_bytes, "endurance: of a block of the trace [64MiB]")
      ->transform(CLI::AsSizeValue(false));
  bench->add_option("--daily-budget", flags.daily_budget, "endurance: for its second table [half of `all`]")
      ->transform(CLI::AsSizeValue(false));
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

// A shell variable that is not set must not mean a default, or everything.
void refuse_empty(const CLI::App& app) {
  for (const CLI::Option* option : app.get_options())
    for (const std::string& value : option->results())
      if (value.empty())
        throw CLI::ValidationError(option->get_name(), "is empty; give a value, or leave the option out");
  for (const CLI::App* command : app.get_subcommands()) refuse_empty(*command);
}

// The parser would only say that a command is missing.
bool is_known(const CLI::App& app, const std::string& word) {
  const std::string name = word.substr(0, word.find('='));
  const bool option = word.starts_with('-');
  const auto is_named = [&word](const CLI::App* command) { return command->get_name() == word; };
  if (option ? app.get_option_no_throw(name) != nullptr : !app.get_subcommands(is_named).empty()) return true;
  if (option)
    std::fprintf(stderr, "orbitkv: there is no option %s before the command; see orbitkv --help\n",
                 daemon::cli::echo_of(name).c_str());
  else
    std::fprintf(stderr,
                 "orbitkv: no command is called \"%s\"; there are: serve, status, evict, drop, ssd, pool, "
                 "upgrade, bench\n",
                 word.c_str());
  return false;
}

int run(int argc, char** argv) {
  CLI::App app("OrbitKV keeps the KV pages of LLM engines outside the GPU and restores them byte-exact.",
               "orbitkv");
  app.set_version_flag("--version", std::string("orbitkv ") + kVersion);
  app.footer(
      "Exit status: 0; 1: it failed, stderr says why; 2: the command line is wrong, and nothing was done.\n"
      "serve --keep under a keeper and bench have more: docs/upgrade.md, orbitkv bench --help.");
  app.require_subcommand(1);
  daemon::cli::ServeFlags serve;
  daemon::cli::StatusFlags status;
  daemon::cli::EvictFlags evict;
  daemon::cli::DropFlags drop;
  daemon::cli::SsdFlags ssd;
  daemon::cli::PoolFlags pool;
  daemon::cli::UpgradeFlags upgrade;
  bench::Flags bench;
  add_serve(app, serve);
  add_status(app, status);
  add_evict(app, evict);
  add_drop(app, drop);
  const CLI::App* ssd_commands = add_ssd(app, ssd);
  const PoolCommands pool_commands = add_pool(app, pool);
  add_upgrade(app, upgrade);
  add_bench(app, bench);
  if (argc > 1 && !is_known(app, argv[1])) return kExitUsage;
  try {
    app.parse(argc, argv);
    refuse_empty(app);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : kExitUsage;
  }
  if (app.got_subcommand("serve")) return daemon::cli::serve(serve, {argv + 1, argv + argc});
  if (app.got_subcommand("upgrade")) return daemon::cli::upgrade(upgrade);
  if (app.got_subcommand("status")) return daemon::cli::status(status);
  if (app.got_subcommand("evict")) return daemon::cli::evict(evict);
  if (app.got_subcommand("drop")) return daemon::cli::drop(drop);
  if (app.got_subcommand("ssd"))
    return ssd_commands->got_subcommand("list") ? daemon::cli::ssd_list(ssd) : daemon::cli::ssd_drop(ssd);
  if (app.got_subcommand("pool")) return run_pool(pool_commands, pool);
  return bench::run(bench, argv[0]);
}
}  // namespace

int main(int argc, char** argv) {
  if (!open_standard_descriptors()) return 1;
  const int code = run(argc, argv);
  // Whoever reads it must not take a part for the whole.
  if (std::fflush(stdout) == 0 && std::ferror(stdout) == 0) return code;
  std::fprintf(stderr, "orbitkv: the output could not be written: %s\n", std::strerror(errno));
  return code == 0 ? 1 : code;
}
